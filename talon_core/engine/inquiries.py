"""What drafters ask the target beside their trees, checked, and what it answers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from talon_core.engine.checked_policy import MOST_NODES
from talon_core.engine.faults import Faults
from talon_core.engine.spans import SlotSpans
from talon_core.errors import PluginError, blaming, is_whole, naming, written
from talon_core.inquiry import Inquirer, Inquiry
from talon_core.tree import FloatArray, IntArray, TokenTree

if TYPE_CHECKING:
    from torch import Tensor

    from talon_core.engine.drafting import Drafted
    from talon_core.engine.sequence import Sequence


@attrs.frozen(eq=False)
class Asked:
    """A tree with what a drafter asks beside it.

    Attributes:
        tree: the tree that is verified, and behind its nodes those that were added.
        added: how many.
        nodes: after which nodes the target's most likely token is wanted, shape `(asked,)`, int64.
    """

    tree: TokenTree
    added: int
    nodes: IntArray


def answered(asked: Mapping[int, Asked], logits: "Mapping[int, Tensor | FloatArray]") -> dict[int, IntArray]:
    """What the target says, with one copy to its device and one back, however many ask.

    Args:
        asked: by slot what is asked.
        logits: at all nodes of each of these trees, shape `(nodes, vocab)`.

    Returns:
        Its most likely tokens, shape `(asked,)`, int64, by slot.
    """
    tensors: dict[int, Tensor] = {}
    found: dict[int, IntArray] = {}
    for slot, one in asked.items():
        scores = logits[slot]
        if isinstance(scores, np.ndarray):
            found[slot] = scores.take(one.nodes, axis=0).argmax(axis=-1)
        else:
            tensors[slot] = scores
    return found | _answered_on_device({slot: asked[slot] for slot in tensors}, tensors)


def _answered_on_device(asked: Mapping[int, Asked], logits: "Mapping[int, Tensor]") -> dict[int, IntArray]:
    if not asked:
        return {}
    import torch

    counts = [len(one.nodes) for one in asked.values()]
    nodes = torch.from_numpy(np.concatenate([one.nodes for one in asked.values()]))
    places = torch.split(nodes.to(next(iter(logits.values())).device), counts)
    best = [logits[slot].index_select(0, own).argmax(dim=-1) for slot, own in zip(asked, places, strict=True)]
    found = torch.split(torch.cat(best).cpu(), counts)
    return {slot: own.numpy() for slot, own in zip(asked, found, strict=True)}


class Inquiries:
    """What is asked of the target beside the trees of a round: here nothing, for a drafter that does not ask.

    Attributes:
        most_added: most nodes that are added to a tree.
    """

    most_added = 0

    def beside(
        self,
        drafted: Mapping[int, "Drafted"],
        sequences: Mapping[int, "Sequence"],
        faults: Faults,
        spans: SlotSpans,
    ) -> dict[int, Asked]:
        """What is asked beside each tree, of the slots where something is.

        Nothing is where nobody wants a draft: a policy that wants none wants no such rows either.

        Args:
            drafted: what was drafted, with the trees as they will be verified, by slot.
            sequences: what is decoded, by slot.
            faults: gets what fails; what has failed already is not asked about.
            spans: gets what it takes.
        """
        return {}


class DrafterInquiries(Inquiries):
    """What an `Inquirer` asks beside its trees, checked.

    Args:
        drafter: it.
        named: whom errors name.
        vocab_size: the target's.

    Raises:
        PluginError: if what it says of the nodes that it adds is no number; the message names it.
    """

    def __init__(self, drafter: Inquirer, named: object, vocab_size: int) -> None:
        self._drafter, self._named, self._vocab_size = drafter, named, vocab_size
        self.most_added = most_added(drafter, named)

    def beside(
        self,
        drafted: Mapping[int, "Drafted"],
        sequences: Mapping[int, "Sequence"],
        faults: Faults,
        spans: SlotSpans,
    ) -> dict[int, Asked]:
        asked = {}
        for slot, one in drafted.items():
            if slot not in faults and one.was_asked_for:
                with faults.of([slot]), spans.of("draft", [slot], "inquiry"):
                    deepest = sequences[slot].deepest
                    asking = self._drafter, self._named, self.most_added
                    own = inquired(*asking, slot, one.tree, deepest, self._vocab_size)
                    if own is not None:
                        asked[slot] = own
        return asked


def most_added(drafter: Inquirer, named: object) -> int:
    """Most nodes that a drafter adds to a tree.

    Raises:
        PluginError: if what it says is no number of nodes.
    """
    with blaming("drafter", named, "most_added"):
        most: Any = drafter.most_added
    if not is_whole(most) or not 0 <= most <= MOST_NODES:
        raise PluginError(
            f"{naming('drafter', named)} has most_added = {written(most)}; it must be a whole number of nodes, at most "
            f"{MOST_NODES}"
        )
    return int(most)


def inquired(
    drafter: Inquirer, named: object, most: int, slot: int, tree: TokenTree, deepest: int, vocab_size: int
) -> Asked | None:
    """Let a drafter ask the target beside a tree, and check what it asks.

    Args:
        drafter: it.
        named: whom errors name.
        most: nodes that it may add.
        slot: of the sequence.
        tree: as it will be verified.
        deepest: depth of the deepest node that may be added.
        vocab_size: the target's.

    Returns:
        None where nothing is asked.

    Raises:
        PluginError: if the drafter fails, or asks what cannot be asked; the message names it.
    """

    def fail(what: str) -> PluginError:
        return PluginError(f"{naming('drafter', named)} {what}")

    with blaming("drafter", named, "inquire"):
        given: Any = drafter.inquire(slot, tree.copied(), deepest)
        if given is None:
            return None
        if not isinstance(given, Inquiry):
            raise fail(f"returned {written(given)} from inquire; it must return an Inquiry, or None")
        tokens, parents, nodes = (_whole_numbers(one) for one in (given.tokens, given.parents, given.nodes))
    if tokens is None or parents is None or nodes is None or len(tokens) != len(parents):
        raise fail(
            "returned an Inquiry with something else than three rows of whole numbers, as many parents as tokens"
        )
    if len(tokens) > most:
        raise fail(f"added {len(tokens)} nodes to a tree; its most_added is {most}")
    if len(tokens) and (tokens.min() < 0 or tokens.max() >= vocab_size):
        wrong = tokens.min() if tokens.min() < 0 else tokens.max()
        raise fail(f"asked about token {wrong}; the vocabulary has ids 0 to {vocab_size - 1}")
    try:
        joined = tree.extend(tokens, parents, np.zeros(len(tokens)))
    except ValueError as error:
        raise fail(f"added nodes that make no tree: {error}") from None
    if len(nodes) and (nodes.min() < 0 or nodes.max() >= len(joined)):
        wrong = nodes.min() if nodes.min() < 0 else nodes.max()
        raise fail(f"asked about node {wrong}; there are nodes 0 to {len(joined) - 1}")
    if joined.depths[len(tree) :].max(initial=0) > deepest:
        raise fail(f"added a node of depth {joined.depths.max()}; the deepest that may be added has depth {deepest}")
    return Asked(joined, len(tokens), nodes)


def _whole_numbers(given: object) -> IntArray | None:
    """A copy of what was given; None if it is not whole numbers in a row."""
    try:
        array = np.asarray(given)
    except ValueError:
        return None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        return None
    return array.astype(np.int64)
