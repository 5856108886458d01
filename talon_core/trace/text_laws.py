"""Whole laws of one text, and parts of them, as they were recorded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from talon_core.choices import BLOCK
from talon_core.trace.law_sums import Layout
from talon_core.trace.stored import parts_of
from talon_core.trace.sums import CHANGED, row_sums, total_of
from talon_core.tree_arrays import FloatArray, IntArray

LAW_SLACK = 1e-3
"""How far from 1 a law in single precision may sum."""


class LawsChanged(ValueError):
    """A law, or a sum of one, is not what was recorded. Whoever asks for it is not to blame."""


class TextLaws:
    """The laws of the drafter and the target at the rows of a text. They stay on disk until they are looked at.

    Args:
        columns: of the text's file.
        layout: of the sums that are kept beside the laws; None where an earlier version has kept none.
        file: the text's, for errors.

    Attributes:
        layout: as given.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]], layout: Layout | None, file: Path) -> None:
        self.layout = layout
        self._columns, self._file = columns, file
        parts = 0 if layout is None else len(layout.parts)
        self._checked = np.zeros((parts, len(columns["above"])), dtype=bool)  # of which rows' sums

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]], told: Mapping[str, Any], file: Path) -> Self | None:
        """Those of a text; None where none were recorded.

        Args:
            columns: of its file.
            told: of it.
            file: it.

        Raises:
            ValueError: if they are not those of its rows.
        """
        if "law.target" not in columns:
            return None
        rows, vocab_size = len(columns["above"]), columns["law.target"].shape[-1]
        layout = None
        if "law.checks" in columns:
            layout = Layout(vocab_size, tuple(map(float, told["drawn_at"])))
            wanted = {"law.checks": 2 * layout.blocks, "sums.law.sums": len(layout.parts)}
            wanted |= {f"law.sums.{number}": width for number, width in enumerate(layout.parts)}
            if any(columns[name].shape != (rows, width) for name, width in wanted.items()):
                raise ValueError("the sums of its laws are not those of its rows")
        for name in ("law.target", "law.drafter"):
            beside = [columns.get(f"{of}.{name}", columns["above"]) for of in ("sums", "totals")]
            law = columns.get(name)
            if law is not None and (law.shape != (rows, vocab_size) or {*map(len, beside)} != {rows}):
                raise ValueError("its laws are not those of its rows")
        return cls(columns, layout, file)

    def __call__(self, name: str, row: int) -> FloatArray:
        """A whole law at a row's node.

        Args:
            name: "drafter" or "target".
            row: its row.

        Returns:
            Shape `(vocab,)`, summing to 1.

        Raises:
            ValueError: if it was not recorded.
            LawsChanged: if it was changed.
        """
        columns = self._columns
        if f"law.{name}" not in columns:
            raise ValueError(f"'{self._file}' holds no laws of the {name}")
        kept, sums, known = (columns.get(f"{of}law.{name}") for of in ("", "sums.", "totals."))
        assert kept is not None
        if sums is not None and row_sums(kept[row][None])[0] != sums[row]:
            raise LawsChanged(f"a law in '{self._file}' {CHANGED}")
        total = float(known[row]) if known is not None else total_of(kept[row])
        if not kept[row].min() >= 0 or not abs(total - 1) <= LAW_SLACK:
            raise LawsChanged(f"'{self._file}' holds what is no law; it was changed")
        found: FloatArray = np.divide(kept[row], total, dtype=np.float64)
        return found

    def totals(self, name: str, rows: IntArray) -> FloatArray:
        """What laws add up to as they are kept, shape `(rows,)`."""
        found: FloatArray = self._columns[f"totals.law.{name}"][rows]
        return found

    def sums(self, rows: IntArray, part: int) -> FloatArray:
        """A part of the sums of some rows, see `Layout.parts`, shape `(rows, numbers)`.

        Raises:
            LawsChanged: if they were.
        """
        found: FloatArray = self._columns[f"law.sums.{part}"].take(rows, axis=0)
        new = ~self._checked[part][rows]
        if new.any():
            if (row_sums(found[new]) != self._columns["sums.law.sums"][rows[new], part]).any():
                raise LawsChanged(f"a sum of laws in '{self._file}' {CHANGED}")
            self._checked[part][rows] = True
        return found

    def blocks(self, name: str, rows: IntArray, blocks: IntArray) -> NDArray[np.float32]:
        """Blocks of laws as they are kept.

        Args:
            name: "drafter" or "target".
            rows: of the laws, shape `(blocks,)`.
            blocks: a block of each.

        Returns:
            Shape `(blocks, BLOCK)`; behind a law's end there are zeros.

        Raises:
            LawsChanged: if they were.
        """
        assert self.layout is not None
        kept, count = self._columns[f"law.{name}"], self.layout.blocks
        found = parts_of(self._file, kept, rows * kept.shape[1] + blocks * BLOCK, BLOCK)
        beyond = kept.shape[1] % BLOCK
        if beyond:  # the last block is a shorter one
            found[blocks == count - 1, beyond:] = 0.0
        checks = self._columns["law.checks"][rows, blocks + (count if name == "drafter" else 0)]
        if (row_sums(found) != checks).any():
            raise LawsChanged(f"a law in '{self._file}' {CHANGED}")
        return found
