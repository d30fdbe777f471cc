"""Named sets of client settings in one file of the user: `profiles.json`, mode 0600.

In: properties by name. Out: the file, replaced as a whole; the properties of one. It shows no value: a profile may hold
passwords.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final, Self

from stratalog.errors import UserError

__all__ = ["Profiles", "profiles_path"]

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_OTHERS: Final = 0o077
"""The bits of a file's mode that let other users in."""


def profiles_path() -> Path:
    """Return where the profiles are: in `strata` of XDG_CONFIG_HOME, or of ~/.config."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(home) if home else Path.home() / ".config") / "strata" / "profiles.json"


@dataclass(slots=True)
class Profiles:
    """`current` is the profile of commands that name none; empty: none."""

    by_name: dict[str, dict[str, str]]
    current: str = ""

    @classmethod
    def read(cls) -> Self:
        """Read the file; without one there are no profiles. Raises UserError where it is damaged or open to others."""
        path = profiles_path()
        try:
            if path.stat().st_mode & _OTHERS:
                raise UserError(f"{path}: other users can read it; chmod 600 {path}")
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls({})
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}") from error
        except ValueError as error:
            raise UserError(f"{path}: no JSON ({error}); mend or delete it") from error
        if not _is_whole(found):
            raise UserError(
                f'{path}: no profiles; accepted: {{"current": NAME, "profiles": {{NAME: {{…}}}}}}'
            )
        return cls(found["profiles"], found["current"])

    def write(self) -> None:
        """Replace the file as a whole. Raises UserError."""
        path = profiles_path()
        text = json.dumps({"current": self.current, "profiles": self.by_name}, indent=2)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
                file.write(text + "\n")  # its mode is 0600 from the start
            Path(file.name).replace(path)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}") from error

    def add(self, name: str, properties: Mapping[str, str], *, replace: bool) -> None:
        """Add a profile. Raises UserError for a name that is none, or taken."""
        if not _NAME.fullmatch(name):
            raise UserError(
                f"profile {name!r} is not accepted; accepted: 1 to 64 of a-z, A-Z, 0-9, . _ -"
            )
        if name in self.by_name and not replace:
            raise UserError(f"profile {name!r} exists; --replace overwrites it")
        self.by_name[name] = dict(properties)

    def properties(self, name: str | None) -> Mapping[str, str]:
        """Return a profile's properties; None is the current one, if any. Raises UserError where it is missing."""
        wanted = self.current if name is None else name
        if not wanted:
            return {}
        self.check(wanted)
        return self.by_name[wanted]

    def check(self, name: str) -> None:
        """Raise UserError where no profile has this name."""
        if name not in self.by_name:
            others = f"there are: {', '.join(sorted(self.by_name))}" if self.by_name else "none yet"
            raise UserError(f"no profile {name!r} ({others}); strata profile create {name} adds it")

    def delete(self, name: str) -> None:
        """Delete a profile. Raises UserError where it is missing."""
        self.check(name)
        del self.by_name[name]
        if self.current == name:
            self.current = ""


def _is_whole(found: Any) -> bool:
    match found:
        case {"current": str(), "profiles": dict() as profiles, **others} if not others:
            return all(
                isinstance(one, dict) and all(isinstance(text, str) for text in one.values())
                for one in profiles.values()
            )
        case _:
            return False
