"""Asking the real drafter about nodes of a tree of which it may have seen nothing yet: parents first."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.drafter import Drafter, Frontier, Reading
from talon_core.engine.checked_candidates import checked_candidates
from talon_core.engine.checked_drafter import checked_proposal
from talon_core.errors import LostError, blaming
from talon_core.tree import IntArray, TokenTree

if TYPE_CHECKING:
    from talon_core.engine.ahead.text import Text


@attrs.define(eq=False)
class Answer:
    """What a drafter has answered to a frontier.

    Attributes:
        frontier: it.
        given: the answer; nobody has looked at it.
        checked: a copy, if it keeps the contract; None where nobody has asked for it.
    """

    frontier: Frontier
    given: Any
    checked: Candidates | None = None

    def candidates(self, named: object, vocab_size: int) -> Candidates:
        """The answer, checked once.

        Raises:
            PluginError: if it breaks the contract; the message names the drafter.
        """
        if self.checked is None:
            one = self.frontier
            self.checked = checked_candidates(named, self.given, one.tree, one.nodes, vocab_size, one.width)
        return self.checked


def ask(
    drafter: Drafter,
    named: object,
    texts: Mapping[int, "Text"],
    frontiers: Sequence[Frontier],
    nodes: Sequence[Sequence[int]],
) -> tuple[int, Reading | None, bool]:
    """Ask a drafter about some nodes of growing trees, and before that about those above them that it was not asked at.

    One that `takes_paths` is asked about all of them at once.

    What it answers is in `Text.fresh` then.

    Args:
        drafter: it.
        named: whom errors name.
        texts: by slot.
        frontiers: where the trees are, and how many candidates are wanted.
        nodes: of each of these the nodes.

    Returns:
        The draft passes that it took, what the drafter has read before, and whether a pass was being recorded.

    Raises:
        PluginError: if the drafter fails, or answers something else.
        LostError: if it cannot be reached.
    """
    passes, prepared = 0, False
    readings: list[Reading | None] = []
    waiting = [texts[one.slot].unasked(one.tree, own) for one, own in zip(frontiers, nodes, strict=True)]
    while any(waiting):
        wave = []
        for one, own in zip(frontiers, waiting, strict=True):
            fresh, parents = texts[one.slot].fresh, one.tree.parents
            places = {node: place for place, node in enumerate(one.nodes.tolist())}
            ready = [node for node in own if drafter.takes_paths or not node or int(parents[node]) in fresh]
            ready.sort(key=lambda node, places=places: (node in places, places.get(node, node)))  # type: ignore[misc]
            if ready:
                tree = one.tree if ready != [0] else root_of(one.tree)
                wave.append(Frontier(one.slot, tree, np.array(ready, dtype=np.int64), one.width))
                own.difference_update(ready)
        with blaming("drafter", named, "propose", but=_is_lost):
            proposed: Any = drafter.propose(wave)
        checked = checked_proposal(named, proposed, len(wave))
        passes, prepared = passes + checked.draft_passes, prepared or checked.prepared
        readings.append(checked.reading)
        for one, given in zip(wave, checked.candidates, strict=True):
            answer = Answer(one, given)
            texts[one.slot].fresh.update({node: (answer, row) for row, node in enumerate(one.nodes.tolist())})
    return passes, _together(readings), prepared


def _together(readings: Iterable[Reading | None]) -> Reading | None:
    """All of these, one after another; None where there are none."""
    known = [one for one in readings if one is not None]
    return Reading(sum([one.tokens for one in known]), sum([one.seconds for one in known])) if known else None


def _is_lost(error: BaseException) -> bool:
    return isinstance(error, LostError)


def nodes_told(nodes: IntArray, asked: Container[int]) -> IntArray:
    """Of the accepted nodes those that a drafter is told of: at which it was asked, and the one after.

    It need not know the others: a path of which it has seen less is one that it could have been told of any tree.

    Args:
        nodes: along which was accepted, shape `(path,)`, int64.
        asked: where it was asked.
    """
    seen = next((place for place, node in enumerate(nodes.tolist()) if node not in asked), len(nodes) - 1)
    return nodes[: seen + 1]


def root_of(tree: TokenTree) -> TokenTree:
    """The root alone, as a drafter sees it first in each round."""
    return tree if len(tree) == 1 else TokenTree.root(int(tree.tokens[0]))


def own_answer(text: "Text", frontier: Frontier, named: object, vocab_size: int) -> Any:
    """What the drafter has answered to just this frontier; None where it was asked in another way.

    Args:
        text: of the sequence.
        frontier: it; of what was asked for more candidates, its width is left.
        named: whom errors name.
        vocab_size: the target's.
    """
    first, _ = text.fresh.get(int(frontier.nodes[0]), (None, 0))
    if first is None or not np.array_equal(first.frontier.nodes, frontier.nodes):
        return None
    if first.frontier.width == frontier.width:
        return first.given  # whoever has asked for it checks it
    return narrowed(first.candidates(named, vocab_size), frontier.width)


def narrowed(candidates: Candidates, width: int) -> Candidates:
    """The best `width` candidates of each node, at least 1."""
    own = candidates
    return Candidates(own.frontier, own.tokens[:, :width], own.logp[:, :width], own.path_logp[:, :width], own.law)
