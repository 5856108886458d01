"""Passes of which the most likely tokens alone are wanted find them with a screen of the head's weight."""

from __future__ import annotations

from collections.abc import Collection

import attrs
import torch
from torch import Tensor

from talon_kernels.likeliest_tokens.native import Screen
from talon_kernels.native import Library
from talon_kernels.recorded.plan import SCRATCH, read, written
from talon_kernels.recorded.steps import Op, Operand, Piece, Step
from talon_kernels.recorded.tape import Tape

LEAST = 2**20
"""Numbers of a weight that is worth it: its threads wait for one another twice more."""

SHARE = 1 / 3
"""Of the bytes of all weights of a pass, as much as screens may have."""

MOST_SCREENED, WAYS = 16, 4
"""Rows up to which C finds out whether the screen is quicker, and the numbers in which it notes that."""


class Screens:
    """The screens of a pass's heads, made where there is memory for them.

    Attributes:
        held: their tensors, by the pieces of memory that these are.
    """

    def __init__(self) -> None:
        self.held: dict[Piece, Tensor] = {}
        self._of: list[tuple[Tensor, int]] = []  # the weights, and which version of each

    def are_old(self) -> bool:
        """Whether one of the weights has changed since, as far as PyTorch counts it."""
        return any(_version(weight) != version for weight, version in self._of)

    def put_into(self, tape: Tape, tailed: Collection[Piece], library: Library) -> list[Step]:
        """The steps of a pass, with one in the place of a product and of what finds the largest of its rows.

        Args:
            tape: the pass.
            tailed: what PyTorch reads behind the steps, to compute something.
            library: makes screens.

        Returns:
            The tape's own steps where there is nothing to screen. Little is computed of products that are screened.
        """
        self.held, self._of = {}, []
        weights = {tape.addresses[piece]: tensor for piece, tensor in zip(tape.addresses, tape.held, strict=True)}
        room = SHARE * sum(tensor.nbytes for tensor in weights.values())
        steps = tape.steps
        for largest in [step for step in tape.steps if step.op is Op.LARGEST]:
            product = _product(steps, largest, tailed)
            if product is None:
                continue
            y, x, weight = product.operands[:3]
            assert weight is not None
            _, out, inputs, kind = product.numbers
            address = tape.addresses[weight.piece]
            if not LEAST <= out * inputs <= room:
                continue
            try:
                screen = Screen.at(library, address, out, inputs, kind)
            except MemoryError:  # it can do without
                continue
            if screen is None:
                continue
            room -= out * inputs
            self._of.append((weights[address], _version(weights[address])))
            ways = torch.zeros((1 + MOST_SCREENED, WAYS), dtype=torch.int64)
            own = {tape.piece(): tensor for tensor in (screen.codes, screen.columns, ways)}
            self.held |= own
            operands = [largest.operands[0], x, weight, *map(Operand, own)]
            operands += [None] * (SCRATCH - len(operands)) + [y]
            limits = tuple(screen.limits.tolist())
            both = attrs.evolve(product, op=Op.LIKELIEST, operands=operands, scalars=limits)
            steps = [both if step is product else step for step in steps if step is not largest]
        return steps


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _product(steps: list[Step], largest: Step, tailed: Collection[Piece]) -> Step | None:
    """The step that makes the numbers, a row for each of the pass, without a bias, if no step reads them besides."""
    scores = largest.operands[1]
    assert scores is not None
    made = [step for step in steps if scores.piece in written(step)]
    readers = [step for step in steps if scores.piece in read(step)]
    if len(made) != 1 or made[0].op is not Op.LINEAR or readers != [largest] or scores.piece in tailed:
        return None
    (product,) = made
    y, _, weight, bias = product.operands
    each, out, *_ = product.numbers
    whole = y is not None and y.offset == scores.offset and scores.strides == (out, 1)
    fixed = weight is not None and not any(weight.piece in written(step) for step in steps)
    return product if bias is None and each == -1 and whole and fixed else None
