"""Where threads wait for one another in a recorded pass, and where what it makes lies in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

import attrs

from talon_kernels.recorded.steps import BY_COLUMNS, Op, Operand, Piece, Step

LINE = 16
"""Pieces begin at multiples of so many float32 numbers: a line of the cache."""

SCRATCH = 8
"""The operand that some steps write to besides their result."""

SCRATCHED = frozenset({Op.MLP, Op.LIKELIEST})
"""These steps."""


def written(step: Step) -> set[Piece]:
    """The memory that a step writes to."""
    places = [step.operands[0]] + ([step.operands[SCRATCH]] if step.op in SCRATCHED else [])
    return {place.piece for place in places if place is not None}


def read(step: Step) -> set[Piece]:
    """The memory that a step reads."""
    return {place.piece for place in step.operands[1:] if place is not None}


def _shared_by(step: Step) -> object:
    """Steps of which this is the same have each row, or each column, done by the same thread."""
    if step.op in BY_COLUMNS:
        return "columns"
    return "heads" if step.op is Op.ATTEND else step.count


def set_waits(steps: list[Step]) -> list[int]:
    """Let threads wait where a step reads what another thread has written.

    Returns:
        Of each step, how many times threads have waited before it.
    """
    phases: list[int] = []
    fresh: set[Piece] = set()  # written since threads waited
    before: object = None
    chosen = attended = False
    for step in steps:
        by = _shared_by(step)
        of_others = by in ("columns", "heads") or step.op in (Op.GATHER, Op.SCATTER)
        # what threads find of rows, or of parts of a text, has one place for all such steps
        again = (step.op is Op.LIKELIEST and chosen) or (step.op is Op.ATTEND and attended)
        chosen |= step.op is Op.LIKELIEST
        touched = of_others and bool(fresh & (read(step) | written(step)))
        step.waits = bool(phases) and (by != before or again or touched)
        if step.waits:
            fresh = set()
        fresh |= written(step)
        attended = step.op is Op.ATTEND or (attended and not step.waits)
        phases.append((phases[-1] if phases else 0) + step.waits)
        before = by
    return phases


def arrange(
    steps: list[Step], phases: list[int], made: Mapping[Piece, int], lasting: Collection[Piece]
) -> tuple[dict[Piece, int], int]:
    """Places for what a pass makes, used again for others once threads have waited since the last use.

    Args:
        steps: the pass.
        phases: of each step how many times threads have waited before it.
        made: pieces that the pass makes, with how many float32 numbers they have.
        lasting: those of them that are read after the pass.

    Returns:
        Where each begins, and how many numbers there are in all.
    """
    last: dict[Piece, int] = {}
    for step, phase in zip(steps, phases, strict=True):
        for piece in written(step) | read(step):
            last[piece] = phase
    ends = defaultdict(list)
    for piece, phase in last.items():
        if piece in made and piece not in lasting:
            ends[phase].append(piece)
    free: dict[int, list[int]] = defaultdict(list)
    places: dict[Piece, int] = {}
    size, passed = 0, 0
    for step, phase in zip(steps, phases, strict=True):
        for over in range(passed, phase):
            for piece in ends[over]:
                free[_rounded(made[piece])].append(places[piece])
        passed = phase
        for piece in sorted((written(step) | read(step)) & made.keys()):
            if piece not in places:
                room = free[_rounded(made[piece])]
                if room:
                    places[piece] = room.pop()
                else:
                    places[piece] = size
                    size += _rounded(made[piece])
    for piece in made:
        if piece not in places and piece in lasting:
            places[piece] = size
            size += _rounded(made[piece])
    return places, size


def moved(step: Step, arena: Piece, places: Mapping[Piece, int]) -> Step:
    """The step with what the pass makes where it lies in the arena."""

    def place(operand: Operand | None) -> Operand | None:
        if operand is None or operand.piece not in places:
            return operand
        return Operand(arena, operand.offset + places[operand.piece], operand.strides)

    return attrs.evolve(step, operands=[place(operand) for operand in step.operands])


def _rounded(size: int) -> int:
    return -(-size // LINE) * LINE
