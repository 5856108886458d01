"""Small JSON files that are kept by name: those that come with TALON, the user's own, and any that is handed in."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Generic, TypeVar

import attrs

from talon_core.basics import records
from talon_core.basics.paths import alone, cache_folder, data_folder, small_text, write_whole
from talon_core.basics.suggestions import did_you_mean
from talon_core.errors import written

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
ENDING = ".json"
LONGEST_NAME = 100
"""Characters of a name; file systems take about 250 of a file's."""

A_NAME = (
    "it must be of letters, digits, dots, dashes and underscores, "
    f"at most {LONGEST_NAME}, begin with a letter or a digit"
)

Thing = TypeVar("Thing")


@attrs.frozen
class Kept(Generic[Thing]):
    """Files of one kind.

    Attributes:
        what: what one is, as in "profile".
        by: the command that makes them.
        shipped: the folder of those that come with TALON.
        made_of: makes one of plain data; raises ValueError if it is none.
    """

    what: str
    by: str
    shipped: Path
    made_of: Callable[[Any], Thing]

    def folder(self) -> Path:
        """Where the user's own are. Nothing is created here."""
        return data_folder() / f"{self.what}s"

    def check_name(self, name: str) -> None:
        """Refuse what is no name.

        Raises:
            ValueError: if it is none, or that of one that comes with TALON.
        """
        if not is_name(name) or name.endswith(ENDING):
            raise ValueError(f"the name {written(name)} is none; {A_NAME}, and not end in {ENDING}")
        if (self.shipped / f"{name}{ENDING}").exists():
            raise ValueError(f"the {self.what} '{name}' comes with TALON; take another name")

    def check_free(self, name: str) -> None:
        """Refuse a name that one of the user's own has.

        Args:
            name: has passed `check_name`.

        Raises:
            ValueError: if it is taken.
        """
        if self.file_of(name) is not None:
            raise ValueError(
                f"a {self.what} '{name}' of yours is there already; take another name, or give --replace to have it "
                "replaced"
            )

    def making(self, name: str) -> AbstractContextManager[object]:
        """Keep others from making one of the same name, until what is returned is exited.

        The lock is in the user's cache; where that cannot be written, nobody is kept from it.

        Args:
            name: has passed `check_name`.

        Raises:
            ValueError: if somebody is making it.
        """
        file = self.folder() / f"{name}{ENDING}"
        lock = cache_folder() / "locks" / f"{hashlib.sha256(os.fsencode(file)).hexdigest()[:24]}.lock"
        refused = f"another process is making the {self.what} '{name}'; wait for it, or take another name"
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            return alone(lock, refused)
        except OSError:
            return nullcontext()

    def known(self) -> dict[str, Path]:
        """The files of all that have a name: those that come with TALON, and the user's own.

        A file whose name is none cannot be asked for by it, see `nameless`.
        """
        return {name: file for name, file in self._files() if is_name(name)}

    def nameless(self) -> dict[str, str]:
        """Why files in the folder cannot be asked for, by what their names would be."""
        return {
            name: f"'{file}' has a name that is none; {A_NAME}" for name, file in self._files() if not is_name(name)
        }

    def _files(self) -> Iterator[tuple[str, Path]]:
        for folder in (self.shipped, self.folder()):
            for file in sorted(folder.glob(f"*{ENDING}")):
                yield file.name.removesuffix(ENDING), file

    def file_of(self, name: str) -> Path | None:
        """The file of that name; None if there is none."""
        if not is_name(name):
            return None
        found = [folder / f"{name}{ENDING}" for folder in (self.folder(), self.shipped)]
        return next((file for file in found if os.path.lexists(file)), None)

    def read(self, file: Path) -> Thing:
        """Read a file.

        Raises:
            ValueError: if it is none of the kind, cut off, or of another version; the sentence names it.
            OSError: if it cannot be read.
        """
        try:
            return self.made_of(records.parsed(small_text(file)))
        except ValueError as error:
            raise ValueError(f"'{file}' is no {self.what} of {self.by}: {error}") from error

    def find(self, given: str) -> Thing:
        """One by its name, or by its file; see `is_file`.

        Raises:
            LookupError: if there is none of that name.
            ValueError: if the file is none of the kind; see `read`.
            OSError: if it cannot be read.
        """
        if is_file(given):
            return self.read(Path(given))
        known = self.known()
        if given not in known:
            there = f"{did_you_mean(given, [*known])}there are: {', '.join(known)}"
            raise LookupError(f"no {self.what} {written(given)}; {there}")
        return self.read(known[given])

    def save(self, name: str, text: str) -> Path:
        """Keep one under its name; one of the user's own that is there already is replaced.

        Raises:
            ValueError: if its name is none, see `check_name`.
            OSError: if it cannot be written; what was there before stays.
        """
        self.check_name(name)
        file = self.folder() / f"{name}{ENDING}"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, text)
        return file


def is_file(given: str) -> bool:
    """Whether a file is meant, which ends in `.json` or has a folder before it, and not a name."""
    return given.endswith(ENDING) or "/" in given or os.sep in given


def is_name(given: str) -> bool:
    """Whether something may be kept under this name."""
    return len(given) <= LONGEST_NAME and NAME.fullmatch(given) is not None
