"""What may happen to sequences in slots, side by side and one after another: random steps, for Hypothesis."""

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st

from talon_core.testing.drafter_events import Tokens

WIDEST = 8
"""Most candidates of a node that are asked for in most histories."""

LARGEST_WIDTH = 40
"""The same in large ones."""


@attrs.frozen
class Layer:
    """One layer of a tree. Numbers that choose are counted around what there is.

    Attributes:
        width: candidates that are asked for.
        nodes: which of the nodes that were not drafted from yet are drafted from; none for all.
        children: which of what was offered, or has probability in a law, joins the tree.
        deeper: a drafter that takes paths is asked below each of these nodes in the same call.
        order: 0 for the nodes in the order of the tree; otherwise they stand the other way round, and begin elsewhere.
    """

    width: int
    nodes: tuple[int, ...]
    children: tuple[int, ...]
    deeper: bool
    order: int


@attrs.frozen
class Turn:
    """What happens in one slot in one step.

    Attributes:
        move: "go", or "wait", which does nothing, or "close", or "anew", which opens the slot without closing it.
        prompt: of the sequence, if one begins; or what comes after what is taken over.
        source: the slot, counted around, whose text the prompt begins with; None for none.
        length: in how many tokens, counted around.
        count: tokens of a prompt that are read at once.
        layers: of the tree, if the prompt is read.
        accepted: the last accepted node, counted around.
        behind: accepted tokens that were not drafted.
        last: the token after these, counted around; below 0 it is one that was drafted, where there is one.
        ends: the text ends with this round, so that the drafter is not told of it.
        alone: which of the drafter's sources is asked alone, counted around with all of them together.
    """

    move: str
    prompt: Tokens
    source: int | None
    length: int
    count: int
    layers: tuple[Layer, ...]
    accepted: int
    behind: Tokens
    last: int
    ends: bool
    alone: int


@attrs.frozen
class Step:
    """A turn for each slot, whether the session is left before, and whether there is time to spare before drafting."""

    turns: tuple[Turn, ...]
    pause: bool
    spare: bool


class History(tuple[Step, ...]):
    """Steps that Hypothesis does not write out where one fails: that takes seconds, and nobody is shown it."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(f"<{len(self)} steps>")


_WIDTHS = (3, 1, 2, 5, WIDEST)
_LARGE_WIDTHS = (LARGEST_WIDTH, 9, 16, 33)
_MOST_CHILDREN = (20, 2, 1)
_MOVES = (*["go"] * 8, "wait", "close", "anew")
_COUNTS = (60, 1, 2, 5)


def _layer(drawn: bytes) -> Layer:
    """A layer by eight bytes, each of which decides one thing: to draw them at once takes less time."""
    width, some, few, *numbers = drawn
    return Layer(
        width=_WIDTHS[width % len(_WIDTHS)],
        nodes=tuple(numbers[: max(some % 4 - 1, 0)]),  # none of them in half of the layers
        children=tuple(numbers[2 : 3 + few % 3]),
        deeper=few % 2 == 1,
        order=few // 6 % 4,
    )


def _large_layer(drawn: bytes) -> Layer:
    """The same, of many candidates and more nodes; one in three adds as many nodes as there is room for."""
    width, some, few, order, *numbers = drawn
    return Layer(
        width=_LARGE_WIDTHS[width % len(_LARGE_WIDTHS)],
        nodes=tuple(numbers[:2]) if some % 4 == 1 else (),
        children=tuple(range(numbers[2], numbers[2] + _MOST_CHILDREN[few % len(_MOST_CHILDREN)])),
        deeper=few // 8 % 4 == 1,
        order=order % 4,
    )


def _turn(drawn: bytes, slots: int, prompt: Tokens, layers: tuple[Layer, ...], behind: Tokens) -> Turn:
    """A turn by seven bytes, as a layer, and what is longer."""
    move, source, length, count, accepted, last, ends = drawn
    return Turn(
        move=_MOVES[move % len(_MOVES)],
        prompt=prompt,
        source=None if source % 2 else source // 2 % slots,
        length=length,
        count=_COUNTS[count % len(_COUNTS)],
        layers=layers,
        accepted=accepted,
        behind=behind,
        last=-1 if last % 8 == 0 else last // 4,
        ends=ends % 8 == 0,
        alone=ends // 8,
    )


_LAYERS = st.lists(st.binary(min_size=8, max_size=8).map(_layer), max_size=5).map(tuple)
_MANY_LAYERS = st.lists(st.binary(min_size=8, max_size=8).map(_large_layer), min_size=6, max_size=10).map(tuple)


def steps(texts: Sequence[Tokens], vocab_size: int, slots: int, *, large: bool = False) -> st.SearchStrategy[History]:
    """Steps of sequences in so many slots.

    Args:
        texts: the prompts begin like one of these; none for random ones of a few tokens, which repeat themselves.
        vocab_size: the target's.
        slots: how many.
        large: few steps, with deep trees of many nodes and candidates.
    """
    few = [*dict.fromkeys(int(token) for token in np.linspace(0, vocab_size - 1, 4))]  # so that texts repeat themselves

    def tokens(drawn: bytes) -> Tokens:
        return tuple(few[number % len(few)] for number in drawn)

    prompts = st.binary(min_size=1, max_size=14).map(tokens)
    if texts:
        whole = st.sampled_from([*texts])
        prompts = whole | st.tuples(whole, st.integers(0, 60)).map(lambda both: both[0][: 1 + both[1] % len(both[0])])
    behind = st.just(()) | st.binary(max_size=2).map(tokens)
    layers, fewest, most = (_MANY_LAYERS, 2, 2) if large else (_LAYERS, 3, 7)
    turn = st.builds(_turn, st.binary(min_size=7, max_size=7), st.just(slots), prompts, layers, behind)
    step = st.builds(Step, st.tuples(*[turn] * slots), st.booleans(), st.booleans())
    return st.lists(step, min_size=fewest, max_size=most).map(History)
