"""The steps of a recorded pass, as `pass.c` reads them."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

RANK, OPERANDS, NUMBERS = 5, 9, 9
"""Dimensions of an operation on elements, operands of a step, and its further whole numbers."""

STEP = np.dtype(
    [
        ("op", np.int64),
        ("waits", np.int64),
        ("count", np.int64),
        ("sizes", np.int64, RANK),
        ("memory", np.int64, OPERANDS),
        ("offset", np.int64, OPERANDS),
        ("strides", np.int64, (3, RANK)),
        ("numbers", np.int64, NUMBERS),
        ("scalars", np.float64, 2),
    ]
)


class Op(IntEnum):
    """What a step does."""

    LINEAR = 0
    MLP = 1
    NORM = 2
    ATTEND = 3
    WRITE = 4
    GATHER = 5
    SCATTER = 6
    LARGEST = 7
    LIKELIEST = 8
    BEST = 9
    COPY = 10
    NEGATE = 11
    ADD = 12
    SUBTRACT = 13
    MULTIPLY = 14
    DIVIDE = 15


BY_COLUMNS = frozenset({Op.LINEAR, Op.MLP, Op.LIKELIEST})
"""Steps that threads share by columns of the result; others are shared by rows, but for attention."""

Piece = int
"""One of the pieces of memory that a pass works on, by its number."""


@attrs.frozen
class Operand:
    """Where a step reads or writes.

    Attributes:
        piece: the memory.
        offset: where it begins there, in float32 numbers.
        strides: by dimension, in float32 numbers.
    """

    piece: Piece
    offset: int = 0
    strides: tuple[int, ...] = ()


@attrs.define(eq=False)
class Step:
    """One step.

    Attributes:
        op: what is done.
        count: which of the counts of a pass its rows are; 0 is that of the queries.
        operands: the first is the result.
        sizes: of the result, `RANK` of them; a size below 0 counts rows.
        numbers: further whole numbers, as `pass.c` says for each operation.
        scalars: further numbers.
        layer: for attention and writing, the layer of the cache.
        waits: whether threads wait for one another before it.
    """

    op: Op
    count: int
    operands: list[Operand | None]
    sizes: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    scalars: tuple[float, ...] = ()
    layer: int | None = None
    waits: bool = False


def packed(steps: list[Step]) -> NDArray[Any]:
    """The steps as `pass.c` reads them, shape `(steps,)`."""
    out = np.zeros(len(steps), dtype=STEP)
    out["memory"] = -1
    for to, step in zip(out, steps, strict=True):
        to["op"], to["waits"], to["count"] = step.op, step.waits, step.count
        to["sizes"][: len(step.sizes)] = step.sizes
        to["numbers"][: len(step.numbers)] = step.numbers
        to["scalars"][: len(step.scalars)] = step.scalars
        for at, operand in enumerate(step.operands):
            if operand is not None:
                to["memory"][at], to["offset"][at] = operand.piece, operand.offset
                if at < 3:
                    to["strides"][at, : len(operand.strides)] = operand.strides
    return out
