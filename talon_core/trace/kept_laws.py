"""Whole laws of a text while it is recorded: they go to the disk as they come."""

import shutil
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.basics.numerals import rounded
from talon_core.basics.paths import about
from talon_core.trace.law_sums import Layout, drawn_at
from talon_core.trace.stored import Stored
from talon_core.trace.sums import row_sums, total_of
from talon_core.tree import FloatArray

SINGLE = np.dtype("<f4")
"""What laws are kept in."""

LAWS = ("target", "drafter")
"""Whose laws there are."""


class KeptLaws:
    """The drafter's and the target's laws at the rows of one text; memory holds none that was added.

    It is a context, in which they are kept. They are in temporary files without a name, so that nothing of them is left
    behind, however the recording ends.

    Args:
        folder: on whose disk they are.
        vocab_size: the target's.
        temperature: of the text.
    """

    def __init__(self, folder: Path, vocab_size: int, temperature: float = 0.0) -> None:
        self._folder, self._vocab_size = folder, vocab_size
        self.layout = Layout(vocab_size, drawn_at(temperature))
        self._kept: dict[str, _Kept] = {}
        self._files = ExitStack()
        self._failed: OSError | None = None

    def __enter__(self) -> "KeptLaws":
        self._kept = {name: _Kept(self._file()) for name in LAWS}
        return self

    def _file(self) -> IO[bytes]:
        file = TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed with all of them
        self._files.callback(_closed, file)
        return file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._files.close()

    def check_room(self, rows: int, of: str) -> None:
        """Refuse laws that cannot be kept, before they come.

        Args:
            rows: at which there will be laws.
            of: whose they are, for the error.

        Raises:
            ValueError: if there is less room on the disk than they take with their sums, of which the drafter's are
                there twice while the text's file is put together, if those of another text are there, or if this was
                not entered.
        """
        if not self._kept:
            raise ValueError(
                f"{of}: its laws have no files; write 'with KeptLaws(folder, vocab_size, temperature) as laws:'"
            )
        if any(own.sums for own in self._kept.values()):
            raise ValueError(f"{of}: the laws of another text are kept here; make KeptLaws anew for each text")
        needed = rows * (3 * self._vocab_size * SINGLE.itemsize + self.layout.size)
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            raise ValueError(
                f"{of}: recording its laws takes about {rounded(needed / 1e6)} MB on the disk of '{self._folder}', "
                f"which has {rounded(free / 1e6)} MB left; give a folder with more room, or a smaller "
                "--max-new-tokens or --depth"
            )

    def add(self, name: str, law: FloatArray) -> None:
        """Keep a law at the next row; if it cannot be written, `check` says so.

        Args:
            name: "drafter" or "target".
            law: shape `(vocab,)`.
        """
        if self._failed is not None:
            return
        own, kept = self._kept[name], law.astype(SINGLE)
        try:
            with about(self._folder):
                own.file.write(kept.tobytes())
        except OSError as error:  # raised here it would be taken for one of the drafter, which is asked for the law
            self._failed = error
            return
        own.sums.append(int(row_sums(kept[None])[0]))
        own.totals.append(total_of(kept))

    def check(self) -> None:
        """Say that a law could not be kept.

        Raises:
            OSError: if one could not be.
        """
        if self._failed is not None:
            raise self._failed

    def columns(self) -> dict[str, NDArray[Any] | Stored]:
        """All laws so far as columns of a text's file, which can be copied once."""
        found: dict[str, NDArray[Any] | Stored] = {}
        for name, own in self._kept.items():
            found[f"law.{name}"] = Stored(own.file, SINGLE, (len(own.sums), self._vocab_size))
            found[f"sums.law.{name}"] = np.array(own.sums, dtype=np.int32)
            found[f"totals.law.{name}"] = np.array(own.totals, dtype=np.float64)
        return found | self._sums()

    def _sums(self) -> dict[str, NDArray[Any] | Stored]:
        """What parts of the laws add up to, see `law_sums`, and checksums of both."""
        layout = self.layout
        parts, checks = [self._file() for _ in layout.parts], self._file()
        target, drafter = (self._kept[name] for name in LAWS)
        of_rows: list[list[int]] = []
        with about(self._folder):
            for row, totals in enumerate(zip(target.totals, drafter.totals, strict=True)):
                p, q = (self._read(own.file, row) for own in (target, drafter))
                sums = layout.of(p, q, totals)
                for file, part in zip(parts, sums, strict=True):
                    file.write(part.tobytes())
                checks.write(np.concatenate([layout.checks(p), layout.checks(q)]).tobytes())
                of_rows.append([int(row_sums(part[None])[0]) for part in sums])
        rows, found = len(of_rows), dict[str, NDArray[Any] | Stored]()
        for number, (file, width) in enumerate(zip(parts, layout.parts, strict=True)):
            found[f"law.sums.{number}"] = Stored(file, np.dtype("<f8"), (rows, width))
        found["law.checks"] = Stored(checks, np.dtype("<i4"), (rows, 2 * layout.blocks))
        found["sums.law.sums"] = np.array(of_rows, dtype=np.int32).reshape(rows, len(parts))
        return found

    def _read(self, file: IO[bytes], row: int) -> NDArray[np.float32]:
        size = self._vocab_size * SINGLE.itemsize
        file.seek(row * size)
        return np.frombuffer(file.read(size), SINGLE)


@attrs.define(eq=False)
class _Kept:
    """The laws of one of the two, with a checksum and the sum of each."""

    file: IO[bytes]
    sums: list[int] = attrs.field(factory=list)
    totals: list[float] = attrs.field(factory=list)


def _closed(file: IO[bytes]) -> None:
    with suppress(OSError):  # of a full disk, on which the rest cannot be written; nobody reads it
        file.close()
