"""Rounds whose draft trees are chains, run ahead of their time while nobody else wants anything of the two networks."""

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from sys import maxsize
from time import perf_counter
from typing import Any

import attrs
import numpy as np
from torch import Tensor

from talon_core.chains import Chains
from talon_core.drawn import DrawnLater
from talon_core.runtime.executor import HostExecutor, Numbers, walking
from talon_core.runtime.host_draws import ChainDraws
from talon_core.runtime.inputs import pass_inputs
from talon_core.runtime.recording import Asking, ChainPass, ChainRecord, ChainRun, RanChains, Trusted
from talon_core.target import NOTHING_DRAWN, SECONDS_AHEAD, NodeDraws, StillWanted, numbers_of_chain
from talon_core.tree import FloatArray, IntArray, TokenTree, read_only

State = tuple[int, int, int]
"""Of a cache: the committed rows of a text, and how often it was reallocated and slots were given back."""

FEW = 2
"""Rounds that are run together while it is not known how long one takes."""


@attrs.frozen(eq=False)
class Kinds:
    """How the passes of a drafter are told apart, see `Executor.run`, and what they read.

    Attributes:
        first: over what was committed, by the features at `sources`, rows of `given`.
        next: over a drafted token, by what was made at `sources`.
        given: a table of features.
        ids: the target's token of each of the drafter's; None where they are the same.
    """

    first: Hashable
    next: Hashable
    given: Tensor
    ids: IntArray | None


@attrs.frozen(eq=False)
class ReadyLayer:
    """What the drafter has found for a layer.

    Attributes:
        numbers: the best tokens behind the node and their log-probabilities, shape `(1, 2 * width)`.
        scores: those that they were found in, shape `(1, draft vocab)`.
        seconds: that it took.
    """

    numbers: Tensor
    scores: Tensor
    seconds: float


@attrs.frozen(eq=False)
class ReadyWalk:
    """What the target has found for a round.

    Attributes:
        path: the accepted nodes, shape `(path,)`, int64, read only.
        token: behind them.
        features: at these nodes, shape `(path, features)`.
        numbers: of draws that were used.
        seconds: that its pass took.
    """

    path: IntArray
    token: int
    features: Tensor
    numbers: int
    seconds: float


@attrs.frozen(eq=False)
class TakenRound:
    """All that the drafter has found for a round.

    Attributes:
        record: what became of it.
        numbers: what the drafter has found for its layers, shape `(layers, 2 * width)`.
        scores: those that this was found in, shape `(layers, draft vocab)`.
        scale: by how much passes took longer than they say.
    """

    record: ChainRecord
    numbers: Tensor
    scores: Tensor
    scale: float


@attrs.define(eq=False)
class _Ran:
    """Rounds that were run behind one another, and what is the same in each for which one of them was run.

    Attributes:
        found: what became of them.
        slot: of the text.
        width: candidates that were found after each node.
        ends: tokens that end the text.
        draws: how its tokens were drawn; None where they are the most likely ones.
        drafts: whether drafted ones were drawn, too.
        pending: tokens that the drafter had not read before the first one.
        features: where those lie in memory that were given with them.
        state: of the target's cache before the first one, and of the drafter's: see `ChainRounds._state`.
        scale: by how much a pass took longer, with its share of what all of them took besides.
        taken: how many rounds have come.
        layers: how many layers were asked for in the next one.
        law: tells what the drafted tokens of that one were drawn from, as the drafter has handed it over.
    """

    found: RanChains
    slot: int
    width: int
    ends: frozenset[int]
    draws: ChainDraws | None
    drafts: bool
    pending: list[int]
    features: int
    state: tuple[State, State]
    scale: float
    taken: int = 0
    layers: int = 0
    law: object = None

    @property
    def past(self) -> list[ChainRecord]:
        """The rounds that have come."""
        return self.found.rounds[: self.taken]

    @property
    def next(self) -> ChainRecord | None:
        """The round that comes next; None where all have come."""
        rounds = self.found.rounds
        return rounds[self.taken] if self.taken < len(rounds) else None


class ChainRounds:
    """Runs rounds of one text behind one another, if their trees are said to be chains, and has them ready.

    In between nothing of Python is run, so that a round takes what its passes take. Whoever asks for a layer or a tree
    gets what was found for it, if everything that it follows from is the same: the tokens, the features, the committed
    rows of both caches, and the models, which are looked at whenever a session is entered. Otherwise nothing is ready
    any more, and passes are run as always. Whoever begins another pass on one of the caches calls `forget` first.

    Args:
        target: runs the target's passes.
        kind: of these, before they are walked.
        drafter: runs the drafter's.
        features: as for `ChainRun`.
    """

    def __init__(
        self, target: HostExecutor, kind: Hashable, drafter: HostExecutor, features: Callable[[Any], Any]
    ) -> None:
        self._target, self._kind, self._drafter, self._features = target, kind, drafter, features
        self._ran: _Ran | None = None
        self._seconds = 0.0  # of a round, in the latest that were run
        self._most = maxsize  # rounds that are run together, as so many have been of use before
        target.beside.add(self)
        drafter.beside.add(self)

    @property
    def ran(self) -> bool:
        """Whether any rounds were run, so that it is likely that others can be."""
        return self._seconds > 0.0

    def ready(self, slot: int) -> bool:
        """Whether the next round of a text was run, as far as is known before anything is asked."""
        return self._ran is not None and self._ran.slot == slot and self._ran.next is not None

    def forget(self) -> None:
        """Nothing is ready any more. Where rounds to come were others than was said, fewer are run next time."""
        ran, self._ran = self._ran, None
        if ran is not None:
            of_use = ran.next is None
            self._most = min(2 * self._most, maxsize) if of_use else max(2 * ran.taken, 1)

    def run(
        self,
        slot: int,
        kinds: Kinds,
        pending: list[int],
        features: Tensor,
        chains: Chains,
        left: int,
        ends: frozenset[int],
        draws: NodeDraws | None = None,
        wanted: StillWanted | None = None,
        drafts: Callable[[int], FloatArray] | None = None,
    ) -> float:
        """Run rounds, as many as are of use, if they can be run so.

        Args:
            slot: of the text, in both caches.
            kinds: of the drafter's passes. The first rows of its `given` are these features; others take their places.
            pending: tokens that were committed and that the drafter has not read; the last is the root.
            features: the target's before each of them, shape `(pending, features)`.
            chains: what trees will be; the width is one that passes are recorded for.
            left: tokens that the text may still have.
            ends: tokens that end it.
            draws: as for `Drafter.run_on`.
            wanted: likewise.
            drafts: likewise.

        Returns:
            Seconds that were spent on it; 0 where nothing was run.
        """
        started = perf_counter()
        self._target.forget_ahead()
        self._drafter.forget_ahead()
        in_time = FEW if not self._seconds else max(int(SECONDS_AHEAD / self._seconds), 1)
        if self._most < 2:
            self._most = 2  # a later time it may be of use again
            return 0.0
        # each emits a token, and for each there is memory for whole laws
        rounds = max(min(in_time, self._most, chains.rounds, left - 1), 1)
        numbers_of_one = chains.depth + 1 if chains.drawn is None else numbers_of_chain(chains.depth)
        drawn = None if draws is None else ChainDraws.of(draws, rounds * numbers_of_one)
        if draws is not None and drawn is None:
            return 0.0
        numbers = None
        if chains.drawn is not None:
            if drawn is None or drafts is None or not _in_order(kinds.ids):
                return 0.0
            numbers = drafts(rounds * chains.depth)
        asking = Asking(wanted)
        run = self._prepared(slot, kinds, pending, chains, rounds, left, ends, drawn, numbers, asking.asked)
        recorder = self._target.recorder
        if run is None or recorder is None:
            return 0.0
        state = self._state(slot)
        try:
            found = recorder.run_chains(run)
        except RuntimeError:  # it is found again, and told of, where the pass is run by itself
            return 0.0
        asking.check()
        if found is None or not found.rounds:
            return 0.0
        seconds = perf_counter() - started
        self._seconds = seconds / len(found.rounds)
        scale = seconds / sum([sum(one.seconds) for one in found.rounds])
        given = slot, chains.width, ends, drawn, numbers is not None, pending, features.data_ptr(), state, scale
        self._ran = _Ran(found, *given)
        return seconds

    def _prepared(
        self,
        slot: int,
        kinds: Kinds,
        pending: list[int],
        chains: Chains,
        rounds: int,
        left: int,
        ends: frozenset[int],
        draws: ChainDraws | None,
        drafts: FloatArray | None,
        wanted: StillWanted | None,
    ) -> ChainRun | None:
        """The rounds as they are to be run; None where a pass cannot be repeated, or there is no room."""
        depth, caches = chains.depth, (self._target.cache, self._drafter.cache)
        choosing = draws is None
        target = self._target.trusted(walking(self._kind) if choosing else self._kind, choosing)
        first = self._drafter.trusted(kinds.first, choosing=False)
        # of one token nothing is drafted from
        following = self._drafter.trusted(kinds.next, choosing=False) if depth > 1 else first
        if target is None or first is None or following is None:
            return None
        alone = following.with_one or depth == 1
        if not (target.with_several and first.with_several and alone) or depth >= len(kinds.given):
            return None
        most = max(len(pending), depth + 1)  # that the drafter reads
        for cache, rows in zip(caches, (depth + 1, most + depth), strict=True):
            counts = [0] * len(cache.lengths)
            counts[slot] = rows
            cache.make_room_for(counts)  # for one round, as where it is run by itself

        def of(trusted: Trusted, which: int, tokens: list[int], rows: int, more: Mapping[str, Numbers]) -> ChainPass:
            inputs = pass_inputs({slot: (_chain(tokens), len(tokens) - rows)}, caches[which].lengths)
            return ChainPass(trusted.recorded, inputs, more, caches[which].capacity)

        passes = (
            of(target, 0, [pending[-1]] * (depth + 1), depth + 1, {}),
            of(first, 1, pending, len(pending), _numbers(len(pending))),
            of(following, 1, [*pending, pending[-1]], 1, _numbers(1)),
        )
        sizes = depth + 1, most, 1
        if not all(one.recorded.fits(size, one.more) for one, size in zip(passes, sizes, strict=True)):
            return None
        return ChainRun(
            slot=slot,
            target=passes[0],
            features=self._features,
            first=passes[1],
            next=passes[2],
            given=kinds.given,
            pending=pending,
            ids=kinds.ids,
            chains=chains,
            rounds=rounds,
            left=left,
            ends=ends,
            least_pending=1 if first.with_one else 2,
            least_drafted=0 if target.with_one else 1,
            draws=draws,
            drafts=drafts,
            wanted=wanted,
        )

    def layer(
        self, slot: int, tree: TokenTree, nodes: IntArray, width: int, pending: list[int], features: Sequence[Tensor]
    ) -> ReadyLayer | None:
        """What the drafter has found after a node, if it was run ahead; otherwise nothing is ready any more.

        Args:
            slot: of the text.
            tree: as it has grown.
            nodes: those of its nodes that are asked about.
            width: how many candidates, as passes are recorded for it.
            pending: as for `run`.
            features: likewise, in parts.
        """
        ran = self._ran
        if ran is None:
            return None
        round_, layer = ran.next, ran.layers
        if (
            round_ is None
            or ran.drafts
            or (ran.slot, ran.width) != (slot, width)
            or layer >= round_.layers
            or len(nodes) != 1
            or not self._is_behind(ran, round_, tree, nodes.item(0))
            or not (layer or self._is_begun(ran, round_, pending, features))
        ):
            self.forget()
            return None
        if layer == 0:
            cache = self._drafter.cache
            cache.restage({slot: len(pending)}, cache.passes)
        ran.layers += 1
        found = ran.found
        return ReadyLayer(
            found.numbers[ran.taken, layer : layer + 1],
            found.scores[ran.taken, layer : layer + 1],
            round_.seconds[layer] * ran.scale,
        )

    def _is_behind(self, ran: _Ran, round_: ChainRecord, tree: TokenTree, node: int) -> bool:
        """Whether a node is the one behind which the next layer was run: the path to it has the drafted tokens."""
        return bool(tree.tokens.take(tree.path(node)[1:]).tolist() == round_.drafted[: ran.layers])

    def _is_begun(self, ran: _Ran, round_: ChainRecord, pending: list[int], features: Sequence[Tensor]) -> bool:
        """Whether the text stands where the round that comes next was run."""
        before = ran.found.rounds[ran.taken - 1].emitted if ran.taken else ran.pending
        at = ran.found.features[ran.taken - 1].data_ptr() if ran.taken else ran.features
        given = len(features) == 1 and features[0].data_ptr() == at and len(features[0]) == len(pending)
        state = _after(ran.state, ran.past)
        return given and pending == before and self._state(ran.slot) == state

    def take(self, slot: int, pending: list[int], features: Sequence[Tensor]) -> TakenRound | None:
        """All layers of the next round of a text, if it was run ahead; otherwise nothing is ready any more.

        Args:
            slot: of the text.
            pending: as for `run`.
            features: likewise, in parts.
        """
        ran = self._ran
        if ran is None:
            return None
        round_ = ran.next
        if round_ is None or ran.slot != slot or ran.layers or not self._is_begun(ran, round_, pending, features):
            self.forget()
            return None
        if not round_.layers:
            return None
        cache = self._drafter.cache
        cache.restage({slot: len(pending)}, cache.passes)
        ran.layers = round_.layers
        found, layers = ran.found, slice(round_.layers)
        return TakenRound(round_, found.numbers[ran.taken, layers], found.scores[ran.taken, layers], ran.scale)

    def hand_over(self, law: object) -> None:
        """The tokens of the round that was taken were drawn from this (`AheadDraws.law`), and from nothing else."""
        if self._ran is not None:
            self._ran.law = law

    def walk(
        self, trees: Mapping[int, TokenTree], ends: frozenset[int], drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN
    ) -> ReadyWalk | None:
        """What the target has found for a round, if that was run ahead; otherwise nothing is ready any more.

        Args:
            trees: of the round, by slot.
            ends: tokens that end the texts.
            drawn: as for `Executor.walk`.
        """
        ran = self._ran
        if ran is None:
            return None
        round_ = ran.next
        if round_ is None or not self._is_verified(ran, round_, trees, ends, drawn.get(ran.slot)):
            self.forget()
            return None
        path = _path(1 + round_.accepted)
        features = ran.found.features[ran.taken, : len(path)]
        ran.taken, ran.layers = ran.taken + 1, 0
        cache = self._target.cache
        cache.staged_now([int(slot in trees) for slot in range(len(cache.lengths))])
        cache.committed({ran.slot: len(path)})
        return ReadyWalk(path, round_.token, features, round_.numbers, round_.seconds[-1] * ran.scale)

    def _is_verified(
        self,
        ran: _Ran,
        round_: ChainRecord,
        trees: Mapping[int, TokenTree],
        ends: frozenset[int],
        draws: NodeDraws | None,
    ) -> bool:
        if ran.draws is None and draws is not None:
            return False
        tree = trees.get(ran.slot)
        if tree is None or len(trees) > 1 or ends != ran.ends or ran.layers != round_.layers:
            return False
        used = sum([one.numbers for one in ran.past])
        if ran.draws is not None and not ran.draws.are(draws, used, bool(tree.drawn)):
            return False
        drafted = round_.drafted
        if tree.tokens.tolist()[1:] != drafted or tree.parents.tolist() != [*range(-1, len(drafted))]:
            return False
        if tree.drawn and not (isinstance(tree.drawn, DrawnLater) and tree.drawn.law is ran.law):
            return False
        if bool(tree.drawn) is not (ran.drafts and bool(drafted)):
            return False
        target, _ = _after(ran.state, ran.past)  # the drafter hears of the round later
        return self._state(ran.slot)[0] == target

    def _state(self, slot: int) -> tuple[State, State]:
        """That of both caches, as far as a text's own rows hang on it."""
        own, other = self._target.cache, self._drafter.cache
        return (
            (own.lengths[slot], own.reallocations, own.turns),
            (other.lengths[slot], other.reallocations, other.turns),
        )


def _after(state: tuple[State, State], rounds: Sequence[ChainRecord]) -> tuple[State, State]:
    """The state of the caches behind some rounds."""
    (target, *others), (drafter, *more) = state
    target += sum([1 + one.accepted for one in rounds])
    drafter += sum([one.pending for one in rounds])
    return (target, others[0], others[1]), (drafter, more[0], more[1])


def _in_order(ids: IntArray | None) -> bool:
    """Whether a drafter's tokens stand in the order of the target's, in which tokens are drawn."""
    return ids is None or bool((ids[1:] > ids[:-1]).all())


def _numbers(rows: int) -> Mapping[str, Numbers]:
    """Room for the further numbers of a draft pass over so many rows, of which candidates are wanted behind one."""
    each, one = np.zeros(rows, dtype=np.int64), np.zeros(1, dtype=np.int64)
    return {"sources": Numbers(each, one_each=True), "made": Numbers(each, one_each=True), "ends": Numbers(one)}


def _chain(tokens: list[int]) -> TokenTree:
    return TokenTree(tokens, np.arange(-1, len(tokens) - 1), np.zeros(len(tokens)))


@functools.cache
def _path(nodes: int) -> IntArray:
    """The path down a chain of so many nodes, made once for all threads."""
    return read_only(np.arange(nodes))
