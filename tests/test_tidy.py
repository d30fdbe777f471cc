"""The house rules that linters cannot hold, as tests (after TigerBeetle's `tidy.zig`).

Every rule is a function from a source file to complaints, and every rule is shown a file that breaks it, so that none
of them can fall asleep.
"""

import ast
import gc
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from tests.definitions import called_by_us, class_bases, defined_names, used_names
from tests.naming import (
    names_say_what_things_are,
    partitions_have_one_identity,
    values_are_named,
)

from stratalog.broker.apis import APIS as SERVED

pytestmark = pytest.mark.xdist_group("tidy")  # one process parses all files, once

TOP = Path(__file__).parent.parent
LINES_MAX = 900
FUNCTION_LINES_MAX = 70
APIS = "src/stratalog/broker/apis/"
GENERATED = tuple(f"src/stratalog/wire/{folder}/" for folder in ("codecs", "internal", "messages"))
PURE = ("wire", "log", "metadata", "quorum", "replication", "coordinators", "config")
PURE_FILES = ("src/stratalog/statemachine.py", "src/stratalog/errors.py")

IMPURE_MODULES = {
    "asyncio": "the shell's business: return values and let the caller wait",
    "concurrent": "take a ports.Worker in the shell",
    "io": "take and return bytes",
    "multiprocessing": "take a ports.Worker in the shell",
    "os": "return an effect, or use ports in the shell",
    "pathlib": "paths are text relative to the log directory",
    "random": "take ports.Entropy",
    "secrets": "take ports.Entropy",
    "select": "the shell's business",
    "selectors": "the shell's business",
    "shutil": "return an effect",
    "signal": "the shell's business",
    "socket": "ports.Network, in the shell",
    "ssl": "ports.Network, in the shell",
    "subprocess": "the shell's business",
    "tempfile": "return an effect",
    "threading": "take a ports.Worker in the shell",
    "time": "take now_ms",
}
CARRIERS = {
    # Where one failure must not end others' work: each carries what it catches to the caller that waits, or to the log.
    "adapters/processes.py": ["serve"],
    "adapters/threads.py": ["_work"],
    "broker/apis/fetch.py": ["_answer_later"],
    "broker/apis/produce.py": ["completed"],
    "broker/coordination/quorum_driver.py": ["_work"],
    "broker/coordination/runtime.py": ["run", "_append_taken", "_release", "_deliver"],
    "broker/network/connection.py": ["_start", "_flush"],
    "broker/network/throttling.py": ["_steps"],
    "broker/partitions/purgatory.py": ["_serve"],
    "broker/small_fetches.py": ["_begin"],
    "broker/small_requests.py": ["_decide"],
    "broker/storage/directory.py": ["run", "_run_program", "_complete"],
}
IMPURE_CALLS = {
    "open": "return an effect, or use ports.Disk in the shell",
    "input": "the CLI's business",
    "print": "the CLI's business",
    "uuid4": "take ports.Entropy",
    "uuid1": "take ports.Entropy",
    "now": "take now_ms",
    "utcnow": "take now_ms",
    "today": "take now_ms",
}
EVERYWHERE_BANNED_CALLS = {
    "breakpoint": "nothing: it is left over",
    "eval": "a table",
    "exec": "a table",
    "__import__": "an import statement",
}
PLAIN_WORDS = {
    "who|whom|whoever": "name the actor: the broker, a client, the caller",
    "somebody|someone|anybody|nobody": "name the actor: `no client`, `another node`",
    "told|hears?|heard": "say what is sent: answer, report, receive, learn",
    "figures?": "metric; of a benchmark: measurement",
    "(?<!gossip_to_)settle[sd]?|settling": "fsync or flush; of a question: decide",
    r"(?<!allow[.])(?<!allow__)everyone|everybody": "name the actors: every member, all clients",
    "held against": "compared with",
    "be had": "available; of a file: fetched",
    "hand(?:s|ed|ing)? over": "upload; to a caller: pass",
}
"""Words that make a reader guess, and what to write instead (docs/glossary.md has the field's terms)."""
RIDDLE = re.compile(rf"(?<![a-z])(?:{'|'.join(PLAIN_WORDS)})(?![a-z])", re.IGNORECASE)
API_OPENING = re.compile(r"\w+ \(key \d+\), versions? [\d-]+[.;]", re.ASCII)
MACHINE_PATHS = re.compile(r"(?<![\w.])/(work|farm|root|home/[a-z]+)/[a-z]")
REGISTRY_HOSTS = re.compile(
    r"pypi\.org|pythonh[o]sted|registry\.npmjs|repo1?\.maven|proxy\.golang|static\.crates|deb\.debian"
)


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file: its path below the top of the checkout, its text, its tree and all nodes of the tree."""

    path: str
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]

    @property
    def is_product(self) -> bool:
        return self.path.startswith(("src/", "pipelines/"))

    @property
    def is_pure(self) -> bool:
        return self.path in PURE_FILES or any(
            self.path.startswith(f"src/stratalog/{package}/") for package in PURE
        )

    @property
    def is_generated(self) -> bool:
        return self.path.startswith(GENERATED)


def source(path: str, text: str) -> Source:
    with collector_off():
        tree = ast.parse(text)
        return Source(path, text, tree, tuple(ast.walk(tree)))


@contextmanager
def collector_off() -> Iterator[None]:
    """Python code that runs as the collector runs (Hypothesis has some) makes ast.parse of 3.11 fail: SystemError, "AST
    constructor recursion depth mismatch". With millions of nodes, collections also take longer than parsing does.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@cache
def files() -> tuple[str, ...]:
    """Return the paths of files that are or would be committed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return tuple(sorted(name for name in set(listed) if (TOP / name).is_file()))


@cache
def sources() -> tuple[Source, ...]:
    with collector_off():
        read = tuple(
            source(name, (TOP / name).read_text()) for name in files() if name.endswith(".py")
        )
        gc.freeze()  # the trees stay: no later collection of this process walks them
    return read


Complaints = Iterator[str]
Rule = Callable[[Source], Complaints]


def modules_are_read_in_one_sitting(file: Source) -> Complaints:
    lines = file.text.count("\n")
    if lines > LINES_MAX and not file.is_generated:
        yield f"{lines} lines, {LINES_MAX} at most: split it where one part knows nothing of the other"


def functions_fit_on_a_screen(file: Source) -> Complaints:
    for node in file.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not file.is_generated:
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.lineno}: {node.name} has {lines} lines, {FUNCTION_LINES_MAX} at most"


def modules_say_what_enters_and_leaves(file: Source) -> Complaints:
    if not file.is_product or file.is_generated:
        return
    opening = ast.get_docstring(file.tree) or ""
    missing = [word for word in ("In:", "Out:") if word not in opening]
    if Path(file.path).name == "__init__.py" and len(file.tree.body) <= 1:
        missing = [] if opening else ["a line that says what enters and leaves the folder"]
    if file.path.startswith(APIS) and not file.path.endswith("__init__.py"):
        missing = (
            []
            if API_OPENING.match(opening)
            else ["`Name (key N), versions A-B.` as its first line"]
        )
    if missing:
        yield f"its docstring lacks {' and '.join(missing)}"


def imported_modules(file: Source) -> Iterator[tuple[int, str]]:
    for node in file.nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module


def the_core_touches_nothing_outside(file: Source) -> Complaints:
    if not file.is_pure:
        return
    for line, module in imported_modules(file):
        name = module.partition(".")[0]
        if name in IMPURE_MODULES:
            yield f"{line}: imports {module}; instead: {IMPURE_MODULES[name]}"
    yield from banned_calls(file, IMPURE_CALLS)


def called_name(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def banned_calls(file: Source, banned: dict[str, str]) -> Complaints:
    for node in file.nodes:
        if isinstance(node, ast.Call) and (name := called_name(node)) in banned:
            yield f"{node.lineno}: calls {name}(); instead: {banned[name]}"


def nothing_is_left_over(file: Source) -> Complaints:
    yield from (
        complaint
        for complaint in banned_calls(file, EVERYWHERE_BANNED_CALLS)
        if file.is_product and not file.is_generated
    )


def no_failure_is_swallowed(file: Source) -> Complaints:
    """Bugs must surface: a handler names its exceptions, or raises again and says why, or is one of CARRIERS."""
    if not file.is_product:
        return
    lines = file.text.splitlines()
    carriers = CARRIERS.get(file.path.removeprefix("src/stratalog/"), ())
    for node in file.nodes:
        suppresses = isinstance(node, ast.Call) and called_name(node) == "suppress"
        if suppresses and any(is_everything(what) for what in node.args):
            yield f"{node.lineno}: suppresses everything; instead: the exceptions it can handle"
        if not isinstance(node, ast.ExceptHandler) or not is_everything(node.type):
            continue
        if not is_bare_raise(node.body[-1]) and function_of(file, node) not in carriers:
            yield f"{node.lineno}: catches everything; instead: the exceptions it can handle"
        if not re.search(r"# (noqa: BLE001 - )?\w+[;,]? \w+", lines[node.lineno - 1]):
            yield f"{node.lineno}: catches everything; a comment says what it restores, or who gets it"


def is_everything(caught: ast.expr | None) -> bool:
    one_by_one = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(
        one is None or ast.unparse(one) in {"Exception", "BaseException"} for one in one_by_one
    )


def is_bare_raise(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Raise) and statement.exc is None


def function_of(file: Source, inner: ast.ExceptHandler) -> str:
    """Return the name of the innermost function around a handler."""
    around = [
        node
        for node in file.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= inner.lineno <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno).name if around else ""


def values_are_slotted(file: Source) -> Complaints:
    if not file.path.startswith("src/") or file.is_generated:
        return
    for node in file.nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        for decorator in node.decorator_list:
            if ast.unparse(decorator).startswith("dataclass") and "slots=True" not in ast.unparse(
                decorator
            ):
                yield f"{node.lineno}: dataclass {node.name} without slots=True"


def our_names_are_imported_one_by_one(file: Source) -> Complaints:
    for node in file.nodes:
        if isinstance(node, ast.Import) and any(a.name.startswith("stratalog") for a in node.names):
            yield f"{node.lineno}: import stratalog…; instead: from … import the names"


def handlers_know_their_types(file: Source) -> Complaints:
    if file.path.startswith(APIS):
        for node in file.nodes:
            if isinstance(node, ast.Name) and node.id == "Any":
                yield f"{node.lineno}: Any; a handler's messages and answers have classes"


RULES: tuple[Rule, ...] = (
    modules_are_read_in_one_sitting,
    functions_fit_on_a_screen,
    modules_say_what_enters_and_leaves,
    the_core_touches_nothing_outside,
    nothing_is_left_over,
    no_failure_is_swallowed,
    names_say_what_things_are,
    partitions_have_one_identity,
    values_are_named,
    values_are_slotted,
    our_names_are_imported_one_by_one,
    handlers_know_their_types,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Rule) -> None:
    complaints = [f"{file.path}:{complaint}" for file in sources() for complaint in rule(file)]
    assert not complaints, "\n" + "\n".join(complaints)


BREAKS: dict[str, tuple[str, str]] = {
    "modules_are_read_in_one_sitting": ("src/stratalog/x.py", "a = 1\n" * 901),
    "functions_fit_on_a_screen": ("scripts/x.py", "def f():\n" + "    a = 1\n" * 70),
    "modules_say_what_enters_and_leaves": ("src/stratalog/x.py", '"""A module.\n\nIn: bytes."""\n'),
    "the_core_touches_nothing_outside": ("src/stratalog/log/x.py", "f = open('x')\n"),
    "nothing_is_left_over": ("src/stratalog/cli/x.py", "breakpoint()\n"),
    "no_failure_is_swallowed": (
        "src/stratalog/x.py",
        "try:\n    pass\nexcept (OSError, Exception):  # a reason\n    pass\n",
    ),
    "names_say_what_things_are": ("src/stratalog/x.py", "class LogManager: ...\n"),
    "partitions_have_one_identity": ("src/stratalog/x.py", "ends: dict[tuple[UUID, int], int]\n"),
    "values_are_named": ("src/stratalog/x.py", "for asked in request.topics: pass\n"),
    "values_are_slotted": ("src/stratalog/x.py", "@dataclass(frozen=True)\nclass A: ...\n"),
    "our_names_are_imported_one_by_one": ("tests/x.py", "import stratalog.log\n"),
    "handlers_know_their_types": (f"{APIS}x.py", "def handle(call: Any) -> None: ...\n"),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_sees_what_it_forbids(rule: Rule) -> None:
    assert list(rule(source(*BREAKS[rule.__name__])))


def test_a_handler_of_everything_raises_again_and_says_why() -> None:
    def complaints(handler: str, path: str = "src/stratalog/x.py") -> int:
        text = f"def run():\n    try:\n        pass\n    {handler}\n"
        return len(list(no_failure_is_swallowed(source(path, text))))

    assert complaints("except BaseException:  # an interrupt too\n        raise") == 0
    assert complaints("except BaseException:\n        raise") == 1
    assert complaints("except:  # an interrupt too\n        pass") == 1
    assert complaints("except Exception:  # noqa: BLE001\n        pass") == 2
    carried = "except Exception:  # noqa: BLE001 - carried to the caller\n        pass"
    assert complaints(carried) == 1
    assert complaints(carried, "src/stratalog/broker/coordination/runtime.py") == 0


def test_each_carrier_is_there() -> None:
    found = {
        (file.path.removeprefix("src/stratalog/"), function_of(file, node))
        for file in sources()
        for node in file.nodes
        if isinstance(node, ast.ExceptHandler)
        and is_everything(node.type)
        and not is_bare_raise(node.body[-1])
        and file.is_product
    }
    assert found == {(path, name) for path, names in CARRIERS.items() for name in names}


def test_the_core_has_no_clock() -> None:
    for text in (
        "import time\n",
        "from time import monotonic\n",
        "import os.path\n",
        "uuid.uuid4()\n",
    ):
        assert list(the_core_touches_nothing_outside(source("src/stratalog/quorum/x.py", text)))
        assert not list(the_core_touches_nothing_outside(source("src/stratalog/broker/x.py", text)))


def complaints_about_text(name: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        for what, pattern in (
            ("a path of one machine", MACHINE_PATHS),
            ("a registry's host", REGISTRY_HOSTS),
        ):
            if pattern.search(line):
                yield f"{name}:{number}: {what}: {line.strip()[:120]}"


def test_no_file_knows_a_machine_or_a_registry() -> None:
    complaints = []
    for name in files():
        data = (TOP / name).read_bytes()
        if b"\0" not in data[:8000] and not name.endswith(".log"):
            complaints += complaints_about_text(name, data.decode(errors="replace"))
    assert not complaints, "\n" + "\n".join(complaints)


def test_a_machine_and_a_registry_are_seen() -> None:
    assert list(complaints_about_text("x", "cd /" + "work/main"))
    assert list(complaints_about_text("x", "https://" + "pypi" + ".org/simple"))
    assert not list(complaints_about_text("x", "the network/" + "work/others"))


def riddles(text: str) -> Complaints:
    for number, line in enumerate(text.splitlines(), 1):
        for word in RIDDLE.findall(line):
            (instead,) = [b for a, b in PLAIN_WORDS.items() if re.fullmatch(a, word, re.IGNORECASE)]
            yield f"{number}: {word!r}; instead: {instead}"


def test_files_are_in_plain_english() -> None:
    complaints = []
    for name in files():
        if name != "tests/test_tidy.py" and name.endswith((".py", ".md", ".sh")):
            text = (TOP / name).read_text()
            if name == "CHANGELOG.md":  # it quotes names that are gone
                text = re.sub(r"`[^`\n]*`", "", text)
            complaints += [f"{name}:{one}" for one in riddles(text)]
    assert not complaints, "\n" + "\n".join(complaints)


def test_a_riddle_is_seen() -> None:
    for text in ("Whoever reads", "nobody_waits = 1", "class A: told = 3", "settles", "can be had"):
        assert list(riddles(text)), text
    assert not list(riddles("The figurehead of a whole island, behind"))
    assert not list(riddles("skip_wait_for_gossip_to_settle"))  # Cassandra's own name


def modules_named_in(file: Source) -> Iterator[str]:
    """By an import, or whole in a string (lazy imports, entry points)."""
    for node in file.nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"stratalog(?:\.\w+)+", node.value)


def test_no_module_is_dead() -> None:
    """Every module of the product is named by another file of the product, by a script, or by pyproject.toml."""
    named = set(re.findall(r"stratalog(?:\.\w+)+", (TOP / "pyproject.toml").read_text()))
    # The first request imports its handler.
    named |= {api.handler.handle.__module__ for api in SERVED.values()}
    for file in sources():
        if not file.path.startswith("tests/"):
            named.update(modules_named_in(file))
    dead = []
    for file in sources():
        if file.is_generated or file.path.endswith("__init__.py"):
            continue
        if file.path.startswith("src/stratalog/"):
            dotted = file.path.removeprefix("src/").removesuffix(".py").replace("/", ".")
            dead += [] if dotted in named | NEXT_MODULES else [file.path]
    assert not dead, f"nothing imports {dead}"


def test_no_definition_is_dead() -> None:
    """A function, class or constant of the product whose name occurs once in the whole checkout is unused."""
    words = Counter(word for file in sources() for word in re.findall(r"\w+", file.text))
    for name in files():
        if name.endswith((".toml", ".sh", ".yml")):
            words.update(re.findall(r"\w+", (TOP / name).read_text()))
    dead = []
    for file in sources():
        if not file.path.startswith("src/") or file.is_generated:
            continue
        for node in file.tree.body:
            unused = [name for name in defined_names(node) if words[name] == 1]
            dead += [f"{file.path}:{node.lineno}: {name}" for name in unused]
    assert not dead, "\n" + "\n".join(dead)


NEXT: dict[str, str] = {}
"""Definitions that only tests call today, and the issue that needs them."""
NEXT_MODULES: set[str] = set()
"""Modules that only tests import today: the cluster needs them."""


def test_no_definition_is_for_tests_alone() -> None:
    """A function or method of the product is called by the product, unless a library or the next issue calls it."""
    called = {
        name
        for file in sources()
        if not file.path.startswith("tests/")
        for name in used_names(file.nodes)
    }
    unused = {}
    ours = [file for file in sources() if file.path.startswith("src/stratalog/")]
    bases = class_bases(file.tree for file in ours)
    for file in ours:
        if not file.is_generated:
            for name, line in called_by_us(file.tree, bases):
                if name not in called:
                    unused[name] = f"{file.path}:{line}: {name}"
    complaints = [place for name, place in unused.items() if name not in NEXT]
    assert not complaints, "\n" + "\n".join(complaints)
    assert NEXT.keys() - unused.keys() == set(), "these have callers now: take them out of NEXT"
