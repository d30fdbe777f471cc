"""Each product module has its test module in the same place below tests/unit, or a row that says which tests it has.

The rows are in `tests/tested_by.toml`. Generated modules and packages' `__init__.py` are left out.
"""

import tomllib
from pathlib import Path, PurePosixPath

TOP = Path(__file__).parent.parent
SOURCE = TOP / "src/stratalog"
GENERATED = ("wire/internal/", "wire/messages/", "wire/codecs/")
ROWS = tomllib.loads((TOP / "tests/tested_by.toml").read_text())


def modules() -> list[PurePosixPath]:
    found = (PurePosixPath(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py"))
    return sorted(
        path for path in found if path.name != "__init__.py" and not str(path).startswith(GENERATED)
    )


def mirror(module: PurePosixPath) -> Path:
    return TOP / "tests/unit" / module.with_name(f"test_{module.name}")


def row_of(module: PurePosixPath) -> str | None:
    """The longest key that is the module or a folder above it."""
    keys = [key for key in (module, *module.parents) if str(key) in ROWS]
    return str(keys[0]) if keys else None


def test_every_module_has_a_test_module_or_a_row() -> None:
    without = [module for module in modules() if not mirror(module).exists()]
    assert without, "every module has a test module: remove the table"
    assert [str(module) for module in without if row_of(module) is None] == []


def test_every_row_is_needed_and_names_tests() -> None:
    needed = {row_of(module) for module in modules() if not mirror(module).exists()}
    assert set(ROWS) - needed == set()
    for key, row in ROWS.items():
        assert row["why"], key
        for name in row["tests"]:
            place = TOP / name
            assert place.is_file() or list(place.rglob("test_*.py")), f"{key}: no tests in {name}"


def test_unit_tests_have_the_path_of_their_module() -> None:
    """A folder of unit tests is a folder of modules; `pipelines` are beside the package."""
    folders = {path.parent for path in (TOP / "tests/unit").rglob("test_*.py")}
    names = {str(folder.relative_to(TOP / "tests/unit")) for folder in folders}
    assert {name for name in names if not (SOURCE / name).is_dir()} <= {"pipelines"}
