"""The interface of targets: the model whose output must not change."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

from talon_core.rule import Accepted, DrawnOrder
from talon_core.tree import FloatArray, IntArray, TokenTree
from talon_core.tree_arrays import ints

if TYPE_CHECKING:
    from torch import Tensor, device

    from talon_core.sampling import Processor


NOT_GREEDY: Mapping[int, frozenset[int]] = {}
"""Nobody wants the target's most likely tokens."""

ALL_WALKED: Mapping[int, int] = {}
"""A path may go to every node."""

SECONDS_AHEAD = 0.1
"""Of passes that are run for rounds to come, at most: in so short a time nobody misses a token, or waits for Ctrl-C."""

StillWanted = Callable[[Sequence[int]], bool]
"""Whether something more is wanted behind some new tokens of a text."""


@attrs.frozen(eq=False)
class Behind:
    """Some places of a text: those behind certain tokens, and behind certain pairs of them.

    Attributes:
        tokens: shape `(tokens,)`, int64.
        pairs: of two that follow each other, each as first * 2^32 + second, rising, shape `(pairs,)`, int64.
    """

    tokens: IntArray
    pairs: IntArray


def _everywhere() -> None:
    """No places are known at which alone something is to be asked."""


NOWHERE = Behind(ints([]), ints([]))
"""None of them."""


@attrs.frozen
class Further:
    """Rounds to come in which nothing is drafted, as far as is known.

    Attributes:
        rounds: how many, behind the one that is verified; at least 1.
        wanted: is asked before each of them, with the tokens that the rounds before it have emitted together, that of
            the verified one the first; where it says no, neither that round is among them nor any behind it. What it
            raises is raised, and it runs no pass. Of a text that is alone; None where nobody is to be asked.
        behind: says at which places alone it is asked, as at all others it says that the round is wanted; None for
            everywhere. Called where such passes are run. A target may ask more often.
    """

    rounds: int
    wanted: StillWanted | None = None
    behind: Callable[[], Behind | None] = _everywhere


NO_TOKEN = -1
"""Stands where no token can come out, because there is no law."""


@attrs.frozen(eq=False)
class DrawnTests:
    """How the drawn children of a tree are tested before tokens are drawn.

    Attributes:
        order: as `AcceptanceRule.tests`.
        tree: with what its children were drawn from.
    """

    order: DrawnOrder
    tree: TokenTree

    @property
    def most_numbers(self) -> int:
        """How many numbers tests and draws take at most."""
        if self.order == "leaves-first":
            return len(self.tree) + 1
        upto: list[int] = []
        for node, parent in enumerate(self.tree.parents.tolist()):
            tests = len(self.tree.drawn[node].tokens) if node in self.tree.drawn else 0
            upto.append(tests + 1 + (upto[parent] if node else 0))
        return max(upto)


def numbers_of_chain(tokens: int) -> int:
    """How many numbers tests and draws take at most along a chain of drawn tokens, as `DrawnTests.most_numbers`."""
    return 2 * tokens + 1


@attrs.frozen(eq=False)
class NodeDraws:
    """How the token after each node of a tree is taken, of all nodes at once.

    Attributes:
        warpers: processors that look at the scores alone, in the order in which they are applied. Each is called with
            scores of any number of nodes, shape `(rows, vocab)`, and with ids of shape `(rows, 0)`.
        ends: token ids that end the text.
        numbers: with which the token after each node is drawn, as `Foreseen` says; shape `(nodes,)`, float64, in
            [0, 1), in steps of 2^-53. The law is the softmax of the warped scores, in float64. None takes the most
            likely token.
        tests: of drawn children, which come first; None if there are none. The numbers are not the nodes' then: they
            are the next ones, as many as any walk needs, and each test and each draw takes the first that is left.
        ahead: tells the numbers of the next so many draws, that after the root first, shape `(draws,)`; None where
            these are not known. Where a tree is its root alone each round takes one.
    """

    warpers: "tuple[Processor, ...]"
    ends: frozenset[int]
    numbers: FloatArray | None
    tests: DrawnTests | None = None
    ahead: Callable[[int], FloatArray] | None = None


NOTHING_DRAWN: Mapping[int, NodeDraws] = {}
"""Nobody wants tokens that are drawn, or whose scores are warped."""


@attrs.frozen(eq=False)
class NodeOutputs:
    """What one forward pass says about every node of one tree.

    Attributes:
        logits: raw scores of the next token, shape `(nodes, vocab)`: a tensor on the target's device, or
            of a target without torch a NumPy array in float64.
        features: the hidden states that were asked for, concatenated, shape `(nodes, features)`; None if none were.
        best: finds the best of rows of scores as `talon_core.runtime.scores.best_numbers` does, in less time than all
            are warped; None where nothing does, and where the scores are an array.
    """

    logits: "Tensor | FloatArray"
    features: "Tensor | None" = None
    best: "Callable[[Tensor, int], Tensor] | None" = None


@attrs.frozen(eq=False)
class Verified:
    """What became of the trees of a pass, by slot.

    Attributes:
        outputs: for the slots whose path is still to be chosen, and for those with nodes that no path goes to.
        accepted: for the slots whose path the target has chosen and committed by itself. The token is `NO_TOKEN` where
            there was no law to draw from after the path.
        prepared: whether something was made in this pass for later ones like it, such as a recording, so that its
            seconds do not tell what a pass takes.
        passes: how many were run: none where this one was run before, several where others were run for rounds to come.
        seconds: that the pass took where it was run before, if it is known; otherwise it took what others did that were
            run with it.
    """

    outputs: Mapping[int, NodeOutputs] = attrs.field(factory=dict)
    accepted: Mapping[int, Accepted] = attrs.field(factory=dict)
    prepared: bool = False
    passes: int = 1
    seconds: float | None = None


class Target(ABC):
    """Runs the target model over committed tokens and draft trees. Each sequence has a slot while it is decoded.

    A sequence's slot is opened; `read` runs its prompt, part by part, all of it but the last token. Then, each round,
    `verify` runs one tree for each slot that takes part, and `commit` keeps the accepted nodes. The cache holds every
    committed token but the last, which is the next tree's root. `close` gives the slot back. Slots join and leave
    whenever others are between rounds. What is asked of a slot that is not open is a ValueError (`check_open`).
    """

    vocab_size: int
    """Number of token ids; ids are 0 to `vocab_size - 1`."""

    device: "device"
    """Where its logits are. Of a target whose logits are arrays nobody asks for it before torch is imported."""

    can_walk: bool = False
    """Whether `verify` takes `greedy`. Where it does not, rules follow its most likely tokens on the host."""

    can_draw: bool = False
    """Whether `verify` takes `drawn`, whatever it holds. Where it does not, rules draw on the host; but see `draws`."""

    runs_on: bool = False
    """Whether `verify` takes `further`."""

    context_length: int | None
    """Most tokens of prompt and output together; None if there is no limit."""

    weight_bits: int | None = None
    """In how many bits each weight is kept: 16 in half precision, 8 or 4 where it is quantised, the mean of all where
    some are in a GGUF file's blocks; None if not known."""

    context_reason: str | None = None
    """Why `context_length` is less than the model's configuration says, as a clause; None if it is not."""

    @property
    def tokenizer_sha256(self) -> str | None:
        """The hash of all tokens with their ids, see `talon_core.retrieval.tokenizer_hash`; None if not known."""
        return None

    @property
    def most_rows(self) -> int | None:
        """Rows, as `rows` counts them, for which the memory that it runs in would do if there were nothing else.

        None if not known, as by default. An engine that is given no bound takes this one.
        """
        return None

    def draws(self, warpers: "tuple[Processor, ...]") -> bool:
        """Whether `verify` takes `drawn` for texts whose tokens are drawn from scores warped so, though not for all.

        Of these nothing is tested, but for chains that a drafter has run ahead with the target (`Drafter.run_on`). It
        is asked where `can_draw` is false, when a text begins.

        Args:
            warpers: as those of `NodeDraws`.
        """
        return False

    @cached_property
    def occupied(self) -> set[int]:
        """Slots that somebody has opened and not closed; engines that share a target keep out of each other's way."""
        return set()

    def session(self) -> AbstractContextManager[object]:
        """Entered by the engine while it decodes; a target may set itself up here and clean up after it.

        It is entered once for a whole generation, or, where somebody is given control between rounds, for each round;
        a `RepeatableSession` makes that cheap.
        """
        return nullcontext()

    @abstractmethod
    def open(self, slot: int, room: int) -> None:
        """A sequence takes a slot.

        Args:
            slot: at least 0.
            room: tokens to make room for: prompt, output and a tree. A larger tree may come.
        """

    def resume(self, slot: int, room: int, source: int, length: int) -> int:
        """As `open`, for a sequence whose prompt begins with the first tokens of the text in another slot, or this one.

        Args:
            slot: as for `open`; what it holds is forgotten, but for what is taken over.
            room: likewise.
            source: the slot of that text, or `slot` itself. It stays as it is.
            length: in how many tokens both begin alike.

        Returns:
            How many of them need not be read, at most `length`; 0 for a target that takes nothing over.
        """
        self.open(slot, room)
        return 0

    def rows(self, rooms: Mapping[int, int]) -> int:
        """How many rows of keys and values are kept where slots with so much room are open, and no others.

        An engine with a bound asks it before it opens a slot. By default every slot up to the last one has as many as
        the longest.

        Args:
            rooms: by slot, as for `open`.

        Returns:
            Those of all slots together; it does not shrink where a room grows or a slot is added.
        """
        return rows_of_longest(rooms)

    @abstractmethod
    def close(self, slot: int) -> None:
        """The sequence has left its slot; what is kept for it may be given up."""

    @abstractmethod
    def read(self, parts: Mapping[int, IntArray]) -> Mapping[int, "Tensor | None"]:
        """Run the next tokens of prompts.

        Args:
            parts: by slot, each of shape `(tokens,)`, int64, perhaps none.

        Returns:
            For each slot the features of these tokens, shape `(tokens, features)`, or None if none are kept.
        """

    def prepare(  # noqa: B027 - most make nothing once
        self,
        slots: Collection[int],
        nodes: int,
        greedy: Mapping[int, frozenset[int]] = NOT_GREEDY,
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
    ) -> None:
        """Told before the first round of a text: what `verify` would make once for passes like its own may be made now.

        By default nothing is. As where `verify` raises, an error ends the texts in all these slots.

        Args:
            slots: whose trees will be verified together, all of them open and read.
            nodes: up to how many nodes each tree will have.
            greedy: as for `verify`.
            drawn: likewise, for trees of one node.
        """

    @abstractmethod
    def verify(
        self,
        trees: Mapping[int, TokenTree],
        greedy: Mapping[int, frozenset[int]] = NOT_GREEDY,
        unwalked: Mapping[int, int] = ALL_WALKED,
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
        further: Further | None = None,
    ) -> Verified:
        """Run trees over the caches of their slots, in one forward pass.

        Args:
            trees: by slot, at least one.
            greedy: the slots where the longest path of the target's most likely tokens is wanted, each with the tokens
                that end its text: a path goes no further than to one of them. The target may choose any of these paths
                by itself, on its device, and commit them. It is empty unless `can_walk` is true.
            unwalked: of the slots whose trees end with nodes that no path goes to, how many these are.
            drawn: the slots where the path of other tokens is wanted, and how these are taken; none of them is in
                `greedy`. As there, the target may choose and commit any of these paths. It is given only where
                `can_draw` is true, or `draws` has said so.
            further: where all trees are roots, and all slots are in `greedy`, or all in `drawn` with numbers of further
                draws: rounds behind this one in which the same slots will have roots alone, as far as is known. Their
                passes may be run now, in less time: one that comes as was expected is run already then. It is
                given only where `runs_on` is true.

        Returns:
            For each slot its outputs, or what was accepted, or where a path was chosen beside such nodes, both.
        """

    @abstractmethod
    def commit(self, paths: Mapping[int, IntArray]) -> None:
        """Keep the cache rows of these nodes of the last verified trees, root first, and forget the other nodes.

        Args:
            paths: by slot; those that the target has committed by itself are not among them.
        """


def rows_of_longest(rooms: Mapping[int, int]) -> int:
    """Rows of all slots up to the last one together, if every slot has as many as the longest; 0 for none.

    Args:
        rooms: by slot how many rows are asked for.
    """
    return (max(rooms) + 1) * max(rooms.values()) if rooms else 0


def check_open(slots: Iterable[int], opened: Collection[int]) -> None:
    """Make sure that slots are open.

    Args:
        slots: those that are wanted.
        opened: those that are open.

    Raises:
        ValueError: for one that is not.
    """
    for slot in slots:
        if slot not in opened:
            raise not_open(slot, opened)


def not_open(slot: int, opened: Collection[int]) -> ValueError:
    """What is wrong where a slot is wanted that is none of those that are open."""
    return ValueError(f"slot {slot} is not open; open are: {', '.join(map(str, sorted(opened))) or 'none'}")
