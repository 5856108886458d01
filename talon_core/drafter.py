"""The interface of drafters: what may come next at each node of a growing tree."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import numpy as np
from attrs.validators import ge, lt

from talon_core.candidates import Candidates
from talon_core.tree import FloatArray, IntArray, TokenTree

if TYPE_CHECKING:
    from torch import Tensor

    from talon_core.chains import Chains
    from talon_core.target import Behind, NodeDraws, StillWanted, Target


FINAL_STATE = -1
"""The hidden state that enters the LM head, in the place of a layer's number."""


@attrs.frozen(eq=False)
class Part:
    """A part of a prompt that the target has read.

    Attributes:
        start: index of its first token in the prompt.
        count: tokens.
        features: the target's hidden states at them, shape `(count, features)`, in the target's dtype and on its
            device, read only; None if the drafter asked for none.
    """

    start: int
    count: int
    features: "Tensor | None" = None

    @property
    def end(self) -> int:
        """Index of the token after its last."""
        return self.start + self.count


@attrs.frozen(eq=False)
class Frontier:
    """Nodes of one growing tree to draft from. The arrays are read only.

    Attributes:
        slot: of the sequence.
        tree: the tree so far.
        nodes: shape `(frontier,)`, int64, at least one; none of them was drafted from before in this round, and their
            parents were. Where a drafter `takes_paths`, parents may stand before them here instead.
        width: how many candidates a node are wanted, at least 1. Fewer columns may come if no more are known.
        source: which of the drafter's `sources` is to answer alone, the same one at all nodes of a tree; None for all
            of them together, and where there are none.
    """

    slot: int
    tree: TokenTree
    nodes: IntArray
    width: int
    source: int | None = None

    def above(self, depth: float) -> "Frontier":
        """Its nodes whose depth is less than this, perhaps none; itself where that are all."""
        nodes = self.nodes[self.tree.depths[self.nodes] < depth]
        return self if len(nodes) == len(self.nodes) else attrs.evolve(self, nodes=nodes)


@attrs.frozen
class Reading:
    """What a drafter has read of texts before it could draft for them.

    Attributes:
        tokens: of all these texts, at least 1.
        seconds: that it took, by the drafter's own clock (`time.perf_counter`): it is told of no other.
    """

    tokens: int = attrs.field(validator=ge(1))
    seconds: float = attrs.field(validator=[ge(0.0), lt(inf)])


@attrs.frozen(eq=False)
class Proposed:
    """A drafter's answer to some frontiers.

    Attributes:
        candidates: one for each, rows in the order of its nodes.
        draft_passes: forward passes of a draft model that it took.
        reading: what it had to read first, as a prompt is read: of prompts for which nothing was drafted before, and of
            what came while drafting paused. None where there was nothing, and where there was little.
        prepared: whether something was made for later passes like these, such as a recording, so that the time of these
            tells nothing of others; see `Executor.preparations`.
        ran_in: seconds that its passes have taken where they were run before, by `Drafter.run_on`; otherwise 0.
    """

    candidates: Sequence[Candidates]
    draft_passes: int = 0
    reading: Reading | None = None
    prepared: bool = False
    ran_in: float = 0.0


@attrs.frozen(eq=False)
class AheadDraws:
    """How the tokens of a chain were drawn that was run ahead.

    Attributes:
        logp: natural log-probability of each by the law that it was drawn from, at most 0.
        law: tells that law by the token's place in the chain, from 0, shape `(vocab,)`, float64, summing to 1.
    """

    logp: Sequence[float]
    law: Callable[[int], FloatArray]


@attrs.frozen(eq=False)
class Ahead:
    """The drafter's part of a round that was run ahead (`Drafter.run_on`).

    Attributes:
        drafted: tokens of the chain, at most as many as there are layers.
        logp: natural log-probabilities of the candidates of each layer, best first, at most as many as were asked for,
            minus infinity for padding, shape `(layers, width)`, float64. The first of each layer are those of the
            chain, unless it is drawn.
        seconds: that each layer has taken, at least one.
        draws: how the tokens were drawn; None where they are the likeliest.
    """

    drafted: Sequence[int]
    logp: FloatArray
    seconds: Sequence[float]
    draws: AheadDraws | None = None


@attrs.frozen
class RanOn:
    """What `Drafter.run_on` has done.

    Attributes:
        seconds: that passes of rounds to come have taken, by the drafter's own clock (`time.perf_counter`); 0 where
            none was run.
        reading: what it has read before, as `Proposed.reading`, whether passes were run then or not. Its seconds are
            not among these.
    """

    seconds: float = 0.0
    reading: Reading | None = None


@attrs.frozen(eq=False)
class Committed:
    """What one round has added to a sequence, as the drafter is told. The arrays are the drafter's own.

    Attributes:
        tokens: the new tokens, shape `(new,)`, int64; the last of them is the next root.
        nodes: the nodes of the *drafted* tree along which they were accepted, the root's 0 first; shape `(path,)`
            with `path <= new`, int64.
        features: the target's hidden states at the accepted nodes, the old root first, shape `(new, features)`, read
            only; None if the drafter asked for none.
        answers: the target's most likely token after each node that an `Inquirer` has asked about, shape `(asked,)`,
            int64; None where nothing was asked.
    """

    tokens: IntArray
    nodes: IntArray
    features: "Tensor | None" = None
    answers: IntArray | None = None


class Drafter(ABC):
    """Proposes next tokens for the nodes of draft trees. Each sequence has a slot, a small number, while it is decoded.

    A sequence's slot is opened with its prompt. Then `read` tells what the target has read of the prompt, part by part
    and all of it but the last token, which is the first root. Then each round calls `propose` once per layer, with the
    frontiers of all slots that take part, and `commit` for those whose text goes on. `close` ends it; the slot may be
    opened again, for another sequence. Slots join and leave whenever others are between rounds. What is asked of a slot
    that is not open should be a ValueError which says so; `talon_core.runtime.OpenSlots` keeps what there is of each.
    """

    max_depth: int | None = None
    """Deepest token it can draft, counted from the root at 0; None if there is no limit."""

    uses_target: bool = False
    """It runs layers of the target: then it cannot draft while the target verifies."""

    drafts_in_cache: bool = False
    """What it drafts stands in the target's own cache until the target verifies: rows are reserved for that, too."""

    takes_paths: bool = False
    """What it says at a node depends on the tokens up to there alone, so that a frontier may hold a node together with
    its parent, which stands before it. A tree that it has not seen is then read in one call, and not layer by layer."""

    sources: Sequence[str] = ()
    """Of a drafter that is made of several, their names: each can also be asked alone, see `Frontier.source`, and then
    costs what it alone takes. A `SourceChooser` is told of them. What is said of a drafter's answers is meant for each
    source by itself: they follow from the text, the path and the source."""

    runs_on: bool = False
    """Whether `run_on` may run anything."""

    def is_ahead(self, slot: int) -> bool:
        """Whether the next round of a text was run ahead, as far as is known before it begins."""
        return False

    def ahead(self, slot: int) -> Ahead | None:
        """What was run ahead for the next round of a text. Whoever gets it does not ask `propose` in that round.

        Returns:
            None where nothing was, or what was run does not hold any more.
        """
        return None

    def run_on(
        self,
        slot: int,
        chains: "Chains",
        left: int,
        ends: frozenset[int],
        draws: "NodeDraws | None" = None,
        wanted: "StillWanted | None" = None,
        drafts: Callable[[int], FloatArray] | None = None,
    ) -> RanOn:
        """Run the passes of rounds to come, the target's, too: each has its answer ready when it is asked for.

        It is asked before a round, where that of no other sequence shares its passes, and the target walks along its
        most likely tokens, or those that it draws. Nothing of the rounds is committed by it, and nothing that is asked
        has another answer than without it. By default nothing is run.

        Args:
            slot: of the sequence.
            chains: what the trees of the round and of those behind it will be.
            left: tokens that may still be emitted.
            ends: tokens that end the text.
            draws: how tokens are drawn, of a tree that is the root alone, with numbers of further draws; None where the
                most likely ones are taken.
            wanted: is asked before each round but the first, with the tokens that those before it have emitted
                together; where it says no, neither that round is run nor any behind it. It runs no pass, and what it
                raises is raised. None where nobody is to be asked, as the engine has it.
            drafts: tells the numbers with which the next so many tokens are drafted, shape `(draws,)`, float64, in
                [0, 1), where chains are drawn, and is given there alone: each takes the next one, as `Foreseen` says.

        Returns:
            What that took.
        """
        return RanOn()

    def likeliest(self, slot: int, tokens: Sequence[int]) -> float | None:
        """How likely what `propose` would offer first is, where that can be told without a pass.

        It is asked before a round, and between passes that are run ahead of their rounds, for tokens that were not told
        of yet; nothing may change by it. Where that is too little for a policy (`TreePolicy.overlooks`), neither is
        asked for a tree.

        Args:
            slot: of a text that is open.
            tokens: the root, and those that may follow it: the candidates are those behind them, once they have come,
                but for what repeats these themselves.

        Returns:
            The natural log-probability of the likeliest candidate, as `propose` would say with a width of 1; minus
            infinity where it would offer none. None where that cannot be told, as by default.
        """
        return None

    def guessable(self, slot: int, least: float) -> "Behind | None":
        """Where `likeliest` may say as much as `least`, whatever stands before.

        So that it need not be asked elsewhere while passes are run ahead of their rounds.

        Args:
            slot: of a text that is open.
            least: a natural log-probability above minus infinity.

        Returns:
            By the tokens that may come behind the root, which is the first of a pair; places at which `likeliest` would
            say less may be among them. None where it has to be asked everywhere, as by default.
        """
        return None

    def session(self) -> AbstractContextManager[object]:
        """Entered by the engine while it decodes, after the target's session and as often; see `Target.session`."""
        return nullcontext()

    def describe(self) -> Mapping[str, object]:
        """What was recognised of its files, for `talon doctor`: flags and sizes by name."""
        return {}

    @abstractmethod
    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        """A sequence takes a slot; whatever was known of an earlier one is forgotten.

        Args:
            slot: at least 0.
            prompt: the drafter's own, shape `(prompt,)`, int64, at least one token; the last is the first root.
            room: most tokens of prompt and output together.
        """

    def resume(self, slot: int, prompt: IntArray, room: int, source: int, length: int) -> int:
        """As `open`, for a prompt that begins with the first tokens of the text in another slot, or in this one.

        Args:
            slot: as for `open`; what is known of it is forgotten, but for what is taken over.
            prompt: likewise.
            room: likewise.
            source: the slot of that text, or `slot` itself. It stays as it is.
            length: in how many tokens both begin alike, less than the prompt has.

        Returns:
            From which token on it has to be told what the target has read, at most `length`. By default that is
            `length` for a drafter that does not listen, as `read` is not its own, and 0 for others.
        """
        self.open(slot, prompt, room)
        return length if type(self).read is Drafter.read else 0

    def rows(self, rooms: Mapping[int, int]) -> int:
        """What its own caches take where these slots are open, in rows of the target's.

        An engine with a bound on rows asks it before it opens a slot, and adds the target's (`Target.rows`).

        Args:
            rooms: by slot the room for prompt, output and a tree, as `Target.open` has it.

        Returns:
            As many of the target's rows as take as many bytes; it does not shrink where a room grows or a slot is
            added. By default 0, for a drafter that keeps no keys and values.
        """
        return 0

    def read(self, parts: Mapping[int, Part]) -> None:  # noqa: B027 - a drafter of texts has read the prompt already
        """The target has read these parts of prompts, by slot; each begins where the slot's last one ended.

        A policy may never ask for a draft: what reading costs a drafter is best left until it is asked.
        """

    def catch_up(self) -> bool:
        """There is time to spare: read a part of what `propose` would have to read first, if anything waits.

        It is asked where the drafter has a process of its own, while nobody else asks it anything, until nothing waits;
        so a part should take no longer than a few layers.

        Returns:
            Whether something was read.
        """
        return False

    @abstractmethod
    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        """The best next tokens at the nodes of some frontiers, at least one, each of another slot."""

    @abstractmethod
    def commit(self, committed: Mapping[int, Committed]) -> None:
        """Take note of what was accepted, by slot; their trees are forgotten, and the last new token is the next root.

        Slots that took no part in the round, or whose text is over, are not among them.
        """

    def close(self, slot: int) -> None:  # noqa: B027 - opening forgets as well
        """The sequence has left its slot; whatever is kept for it may be given up."""


class Retriever(Drafter):
    """A drafter that looks up what followed the same words before: it needs no forward pass, and reads texts alone.

    Of what it hears only `open`, `commit` and `close` matter. Drafters that are made of others use `look_up` in the
    place of `propose`: all that was found, whatever it is worth to a policy, and without arrays as large as a
    vocabulary.
    """

    goes_on: bool = False
    """Whether `look_up` finds behind tokens that may come what it will find once they have come, but for what repeats
    these themselves. Then rounds beside a model can be run ahead for as long as nothing is found."""

    @abstractmethod
    def look_up(self, frontier: Frontier) -> Sequence[Mapping[int, float]]:
        """What was found after each node of a frontier.

        Args:
            frontier: as in `propose`; its width means nothing here.

        Returns:
            For each node, in order, the probability of each token that was found, above 0, by what its match is worth:
            how long it is, and how often it went on like this. They sum to at most 1; the rest is what may come else.
        """

    def guess(self, slot: int, last: int) -> tuple[int, float] | None:
        """What would come next: the likeliest token that `look_up` finds after a text, of equals the first.

        It is asked before each token of a text, of the prompt, too: override it where a whole look-up takes long.

        Args:
            slot: of the text.
            last: its last token.

        Returns:
            The token and its probability; None where nothing is found.
        """
        (found,) = self.look_up(Frontier(slot, TokenTree.root(last), np.zeros(1, dtype=np.int64), 1))
        best = max(found, key=found.__getitem__, default=None)
        return None if best is None else (best, found[best])


class DrafterSpec(ABC):
    """A drafter's options, as an `attrs.frozen` class, and how to open it for a target.

    This is what plugins register: the options are read by the command line, the docs and the errors; the `Drafter`
    that `open` returns holds weights, caches and indices.
    """

    name: ClassVar[str]
    """What the drafter is called in the registry: lower case, with dashes."""

    purpose: ClassVar[str] = ""
    """As `TreePolicy.purpose`."""

    paper: ClassVar[str] = ""
    """As `TreePolicy.paper`."""

    reads_texts: ClassVar[bool] = False
    """It needs nothing of the target but the size of its vocabulary, and reads nothing but prompts and what was
    committed: then it can be asked wherever the texts are, without the model. As what it answers depends on the text
    and the path to the node alone, it is asked once along the texts of a trace, and that is kept."""

    takes_paths: ClassVar[bool] = False
    """As `Drafter.takes_paths`, of what it opens: for whoever has no more of the drafter than what it has said."""

    catches_up: ClassVar[bool] = False
    """What it opens reads what waits where there is time to spare, see `Drafter.catch_up`; likewise."""

    def features(self, num_layers: int) -> tuple[int, ...]:
        """Which hidden states it wants of a target with so many layers.

        State 0 is what enters the first layer, state `i` what layer `i - 1` returns, without the final norm;
        `FINAL_STATE` is what enters the LM head, after the final norm.
        """
        return ()

    @classmethod
    def of_files(cls, path: str) -> "DrafterSpec | None":
        """The options for a drafter of this kind whose files are at `path`; None if they are not of this kind.

        `talon doctor --drafter PATH` asks every registered drafter.

        Args:
            path: a folder or Hugging Face id.

        Raises:
            ValueError: if there are no files, or they are of this kind and cannot be used; the sentence says why.
        """
        return None

    @classmethod
    def rank_for(cls, model: Any) -> int | None:
        """Where this drafter, with its default options, stands among those that are ready for a model.

        The drafter `auto` is the one of the highest rank. Those that need nothing but the text have rank 0; a drafter
        that was trained for this very model has more, the more tokens a round it brings.

        Args:
            model: a transformers causal LM.

        Returns:
            The rank, or None for a drafter that is not ready, or should be asked for by name.
        """
        return None

    def files_hash(self) -> str:
        """Tells the files that it looks things up in from what may be at the same place after a change.

        What was recorded or worked out with the drafter is kept with this hash, and with those of the weights of all
        networks that it holds; with another one it does not count. It is asked without a target, on any machine.

        Returns:
            A hash of the contents; "" where it opens no files, or networks alone.

        Raises:
            ValueError: if there are no such files; the sentence says what is missing.
        """
        return ""

    def for_model(self, model: Any) -> "DrafterSpec":
        """These options, with whatever is to be chosen for a model chosen; by default there is nothing.

        It is called before `features`.

        Args:
            model: a transformers causal LM.

        Raises:
            ValueError: if nothing is ready for it, or the options do not fit it.
        """
        return self

    @abstractmethod
    def open(self, target: "Target") -> Drafter:
        """Load what is needed to draft for `target`.

        Raises:
            ValueError: if the drafter does not fit the target; the sentence says why.
        """
