"""The most likely tokens of a pass whose scores nobody else wants are found with a screen of the head's weight."""

from __future__ import annotations

from collections.abc import Collection

import attrs

from talon_kernels.likeliest_tokens.native import Screen
from talon_kernels.native import Library
from talon_kernels.recorded.plan import SCRATCH, read
from talon_kernels.recorded.steps import Op, Operand, Piece, Step
from talon_kernels.recorded.tape import Tape

LEAST = 2**20
"""Numbers of a weight that is worth it: its threads wait for one another twice more."""

SHARE = 1 / 3
"""Of the bytes of all weights of a pass, as much as a screen may have."""


def screen_heads(tape: Tape, lasting: Collection[Piece], library: Library) -> None:
    """Make one step of a product, of which the largest of each row alone is wanted, and of what finds that.

    Args:
        tape: a pass.
        lasting: what is read after it.
        library: makes screens.
    """
    room = SHARE * sum(weight.nbytes for weight in tape.held)
    for largest in [step for step in tape.steps if step.op is Op.LARGEST]:
        product = _product(tape.steps, largest)
        if product is None:
            continue
        out, x, weight = product.operands[:3]
        assert out is not None
        assert weight is not None
        if out.piece in lasting:
            continue
        _, rows, columns, kind = product.numbers
        if not LEAST <= rows * columns <= room:
            continue
        screen = Screen.at(library, tape.addresses[weight.piece], rows, columns, kind)
        if screen is None:
            continue
        codes, numbers = Operand(tape.hold(screen.codes)), Operand(tape.hold(screen.columns))
        operands = [largest.operands[0], x, weight, codes, numbers]
        operands += [None] * (SCRATCH - len(operands)) + [out]
        both = attrs.evolve(product, op=Op.LIKELIEST, operands=operands, scalars=(*screen.limits.tolist(),))
        tape.steps = [both if step is product else step for step in tape.steps if step is not largest]


def _product(steps: list[Step], largest: Step) -> Step | None:
    """The step that makes the scores, a row for each of the pass, without a bias, if nobody else reads them."""
    scores = largest.operands[1]
    assert scores is not None
    made = [step for step in steps if step.operands[0] is not None and step.operands[0].piece == scores.piece]
    if (
        len(made) != 1
        or made[0].op is not Op.LINEAR
        or [step for step in steps if scores.piece in read(step)] != [largest]
    ):
        return None
    (product,) = made
    out, bias, (each, rows, *_) = product.operands[0], product.operands[3], product.numbers
    whole = out is not None and out.offset == scores.offset and scores.strides == (rows, 1)
    return product if bias is None and each == -1 and whole else None
