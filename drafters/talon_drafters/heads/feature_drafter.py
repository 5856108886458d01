"""The running side of EAGLE's heads: drafting over growing trees with their own cache."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import attrs
import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from talon_core.candidates import Candidates
from talon_core.chains import Chains
from talon_core.drafter import Ahead, AheadDraws, Committed, Drafter, Frontier, Part, Proposed, RanOn, Reading
from talon_core.runtime.best import Best, Vocabulary, few_widths, last_rows
from talon_core.runtime.catching_up import timed_reading
from talon_core.runtime.chain_rounds import ChainRounds, Kinds
from talon_core.runtime.executor import Executor, Numbers, TreeView
from talon_core.runtime.inputs import PassInputs
from talon_core.runtime.open_slots import OpenSlots
from talon_core.runtime.passes import Pass
from talon_core.runtime.rows import KeptRows
from talon_core.runtime.staging import SPARE_ROWS, StagedSlot
from talon_core.target import NodeDraws, StillWanted
from talon_core.tree import FloatArray, IntArray
from talon_drafters.heads.layers import Attend, FeatureHead

KEPT_BYTES = 1 << 28
"""Of the target's features that wait, of all slots together: where they are more, they are read though nobody asks."""

BEGINNING, BEGINNING_BYTES = 128, 1 << 20
"""Tokens at the beginning of a text whose features are kept, at most, and bytes of these. A text that begins alike, as
those of one chat template, needs those of the last token that both have; without them the target reads it again."""


class _Slot(StagedSlot):
    """One slot: what is staged, and where its states are.

    Args:
        prompt: token ids.

    Attributes:
        prompt: likewise.
        features: the target's at the pending pairs, in parts of shape `(pairs, features)`, as they came.
        places: of these features in the drafter's `KeptRows`; when they are staged, of what was made at each staged
            node.
        read: how many tokens of the prompt the target has read.
        last_read: the features of the last of them, as `features` has them.
        beginning: the features of the first tokens, see `BEGINNING`, shape `(tokens, features)`; None before reading.
        answered: frontiers of the round whose answers were ready, as its passes were run ahead.
        came: whether all layers of the round were taken at once that was run ahead.
        asked_width: candidates that are wanted in rounds that are run ahead.
        drawn_at: the temperature at which tokens are drawn in these; None where they are the likeliest.
        round: in which it was staged, as the drafter counts them.
    """

    def __init__(self, prompt: IntArray) -> None:
        super().__init__([])
        self.prompt = prompt
        self.features: list[Tensor] = []
        self.places: list[int] = []
        self.read = 0
        self.last_read: list[Tensor] = []
        self.beginning: Tensor | None = None
        self.answered: list[Frontier] = []
        self.came = False
        self.asked_width = 1
        self.drawn_at: float | None = None
        self.round = 0

    def restart(self, pending: list[int]) -> None:
        super().restart(pending)
        self.answered, self.came = [], False
        self._fresh = True

    def keep_beginning(self, features: Tensor, start: int) -> None:
        """Keep the features of tokens of the text from one on, where they belong to its beginning."""
        known = 0 if self.beginning is None else len(self.beginning)
        most = min(BEGINNING, BEGINNING_BYTES // max(token_bytes(features), 1))
        if start == known < most:
            new = features[: most - start].clone()  # so that what they are a part of can be freed
            self.beginning = new if self.beginning is None else torch.cat([self.beginning, new])

    def last_of(self, length: int) -> list[Tensor]:
        """The features of the last of so many tokens, if they are known still, as `features` has them.

        They are of the last one that was read, also in a long text, and of each at its beginning.
        """
        if self.read == length:
            return self.last_read
        if self.beginning is None or length > len(self.beginning):
            return []
        return [self.beginning[length - 1 : length]]

    def sources(self, count: int) -> IntArray:
        """Where the states are, or the features, that the head reads at the last `count` staged nodes."""
        places = np.array(self.places, dtype=np.int64)
        if self._fresh or self.staged is None:
            return places
        return places[self.staged.parents[-count:]]

    def note(self, places: IntArray) -> None:
        """Where what is made at the last staged nodes will be."""
        self.places = [*([] if self._fresh else self.places), *places.tolist()]
        self._fresh = False


class FeatureDrafter(Drafter):
    """Drafts with an autoregressive head over the target's features.

    A row of the head is a pair: a feature, and the token after it. Committed pairs have the target's own features;
    in a tree, a node's feature is what the head itself made at the node's parent. After each round the pairs of the
    accepted tokens are run again with true features, all in the forward pass that drafts the next root's children.
    Until somebody asks for these nothing is computed: of a prompt, and while drafting pauses, features are kept and no
    more, up to `KEPT_BYTES`.

    Args:
        head: the network, on the target's device.
        embed: token ids, int64, to embeddings.
        vocab_size: the target's.
        executor: runs the head, on its device.
        session: a context in which the head's layers run faster.
        select: from the target's features to those that the head was made for.
        described: what its files are, for `describe`.
        counted: from rows of its own cache to those of the target's that take as much; by default none are counted.
        chained: runs rounds ahead whose trees are chains; None if nothing does.

    Attributes:
        executor: runs the head's passes; its `failure` says why they are not recorded.
    """

    def __init__(
        self,
        head: FeatureHead,
        embed: Callable[[Tensor], Tensor],
        vocab_size: int,
        executor: Executor,
        session: AbstractContextManager[object] | None = None,
        select: Callable[[Tensor], Tensor] = lambda features: features,
        described: Mapping[str, object] | None = None,
        counted: Callable[[int], int] = lambda rows: 0,
        chained: ChainRounds | None = None,
    ) -> None:
        self._chained = chained
        self.runs_on = chained is not None
        self._counted = counted
        self.head = head.eval().requires_grad_(False)
        self._embed = embed
        self._session: AbstractContextManager[object] = session if session is not None else nullcontext()
        self._select = select
        self._described = described or {}
        self._slots = OpenSlots[_Slot]()
        self._round = 0  # counted up between rounds
        self._device = next(head.parameters()).device
        self._given = KeptRows(executor)  # features at the round's pending pairs; `_Slot` says where
        self._rows = KeptRows(executor)  # what was made in the round, likewise
        nothing = torch.zeros((1, head.num_features), dtype=head.dtype, device=self._device)
        self._rows.keep(head.fuse(nothing)[:0])
        self.executor = executor
        self._cache = executor.cache
        ids = head.target_ids.cpu().numpy() if head.target_ids is not None else None
        self._vocabulary = Vocabulary(vocab_size, ids)

    def describe(self) -> Mapping[str, object]:
        return self._described

    def session(self) -> AbstractContextManager[object]:
        return self._session

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self._round += 1
        self._slots[slot] = _Slot(prompt)
        self._cache.open(slot, room + SPARE_ROWS)

    def resume(self, slot: int, prompt: IntArray, room: int, source: int, length: int) -> int:
        self._round += 1
        before, first = self._slots[source], self._cache.lengths[source]
        # a pair belongs to what is shared if its second token does
        pairs = self._cache.resume(slot, room + SPARE_ROWS, source, max(length - 1, 0))
        own = self._slots[slot] = _Slot(prompt)
        features = before.last_of(length) if pairs == length - 1 else []
        if not features and pairs == first and before.features:
            features = [torch.cat(before.features)[: length - first]]
        told = pairs + sum([len(one) for one in features])
        own.beginning = None if before.beginning is None else before.beginning[:told]
        if features:
            own.restart(prompt[pairs + 1 : told + 1].tolist())
            own.read, own.features, own.unread = told, [*features], True
            own.last_read = [one[-1:] for one in features[-1:]]
        return told

    def rows(self, rooms: Mapping[int, int]) -> int:
        return self._counted(self._cache.rows_for({slot: room + SPARE_ROWS for slot, room in rooms.items()}))

    def close(self, slot: int) -> None:
        del self._slots[slot]
        self._cache.close(slot)

    @torch.inference_mode()
    def read(self, parts: Mapping[int, Part]) -> None:
        for slot, part in parts.items():
            own = self._slots[slot]
            assert part.features is not None
            own.pending += own.prompt[part.start + 1 : part.end + 1].tolist()
            own.features.append(part.features)
            own.read = part.end
            if part.count:
                own.unread, own.last_read = True, [part.features[-1:].clone()]
                own.keep_beginning(part.features, part.start)
        self._bound({slot: part.features for slot, part in parts.items()})

    @torch.inference_mode()  # as all that writes to the caches: `commit` comes here, too
    def _bound(self, told: Mapping[int, Tensor | None]) -> None:
        """Read what waits, where too much of it is kept in all.

        Args:
            told: by slot the newest features.
        """
        pairs = sum([len(own.pending) for own in self._slots.values()])
        bytes_each = max([token_bytes(one) for one in told.values() if one is not None], default=0)
        if pairs * bytes_each > KEPT_BYTES:
            self._catch_up([slot for slot in told if self._slots[slot].waits_long])

    def _catch_up(self, slots: Iterable[int]) -> None:
        """Read all pending pairs of each slot but the last, which waits for what comes next: its answer is wanted."""
        waiting = {slot: torch.cat(self._slots[slot].features) for slot in slots}  # (pairs, features)
        lasts = {slot: max(len(self._slots[slot].pending) - 1, 0) for slot in waiting}
        for start, group in self.executor.prompt_passes(lasts):
            ends = [min(lasts[slot], start + self.executor.prompt_tokens) for slot in group]
            tokens = [self._slots[slot].pending[start:end] for slot, end in zip(group, ends, strict=True)]
            states = [self._fuse(waiting[slot][start:end]) for slot, end in zip(group, ends, strict=True)]
            self._prefill(group, tokens, states)
        for slot, features in waiting.items():
            own, last = self._slots[slot], lasts[slot]
            own.restart(own.pending[last:])
            own.features = [features[last:].clone()]  # so that the others can be freed

    def _fuse(self, features: Tensor) -> Tensor:
        return self.head.fuse(self._select(features).to(self.head.dtype))

    def _prefill(self, slots: Sequence[int], tokens: Sequence[list[int]], states: Sequence[Tensor]) -> None:
        """Read pairs of some slots; shorter ones are padded at the end."""
        counts = [len(own) for own in tokens]
        padded = torch.tensor([own + [0] * (max(counts) - len(own)) for own in tokens])
        with self.executor.reading(slots, counts) as (positions, this_pass):
            step = self._step(padded, pad_sequence([*states], batch_first=True), positions, this_pass)
            self.head.read(*step, keep=lambda layer, key, value: self._cache.update(key, value, layer))

    def _step(
        self, tokens: Tensor, states: Tensor, positions: Tensor, this_pass: Pass
    ) -> tuple[Tensor, Tensor, Tensor, Attend]:
        """What the head is given for a step, see `FeatureHead.forward`."""

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self._cache.update(key, value, layer)
            return this_pass.attend(query, keys, values, query.shape[-1] ** -0.5)

        embeddings = self._embed(tokens.to(self._device)).to(states.dtype)
        return embeddings, states, positions.to(self._device), attend

    def is_ahead(self, slot: int) -> bool:
        return self._chained is not None and self._chained.ready(slot)

    def ahead(self, slot: int) -> Ahead | None:
        own, chained = self._slots[slot], self._chained
        found = None if chained is None else chained.take(slot, own.pending, own.features)
        if chained is None or found is None:
            return None
        round_, numbers = found.record, found.numbers
        own.came = True
        logp = numbers.numpy()[:, numbers.shape[1] // 2 :][:, : own.asked_width].astype(np.float64)
        seconds = [each * found.scale for each in round_.seconds[:-1]]
        if own.drawn_at is None:
            return Ahead(round_.drafted, logp, seconds)
        draws = AheadDraws(round_.logp, partial(self._drawn_from, found.scores, own.drawn_at))
        chained.hand_over(draws.law)
        return Ahead(round_.drafted, logp, seconds, draws)

    def _drawn_from(self, scores: Tensor, temperature: float, place: int) -> FloatArray:
        """What a token of a chain was drawn from that was run ahead, shape `(vocab,)`."""
        return self._vocabulary.spread(torch.softmax(scores[place].double() / temperature, dim=-1).numpy())

    @torch.inference_mode()
    def run_on(
        self,
        slot: int,
        chains: Chains,
        left: int,
        ends: frozenset[int],
        draws: NodeDraws | None = None,
        wanted: StillWanted | None = None,
        drafts: Callable[[int], FloatArray] | None = None,
    ) -> RanOn:
        own = self._slots[slot]
        if self._chained is None or not own.pending or not len(self._rows.table) or self._in_round():
            return RanOn()
        if own.waits_long and not self._chained.ran:  # what has to be read is read with the first layer, as elsewhere
            return RanOn()
        reading = self._read_first([slot] if own.waits_long else [])
        own.features = [torch.cat(own.features)] if len(own.features) > 1 else own.features
        for table in (self._given, self._rows):
            table.clear()
        self._given.keep(own.features[0])
        self._rows.reserve(max(len(own.pending), chains.depth + 1) + chains.depth)
        for table in (self._given, self._rows):
            table.clear()
        own.asked_width, own.drawn_at, width = chains.width, chains.drawn, few_widths(chains.width)
        kinds = Kinds((width, True), (width, False), self._given.table, self._vocabulary.ids)
        chains = attrs.evolve(chains, width=width)
        told = own.pending, own.features[0]
        return RanOn(self._chained.run(slot, kinds, *told, chains, left, ends, draws, wanted, drafts), reading)

    def _in_round(self) -> bool:
        """Whether anything was staged in this round. A text that is over is not told of, and may be staged still."""
        return any(own.staged is not None and own.round == self._round for own in self._slots.values())

    def _ready(self, frontiers: Sequence[Frontier]) -> Proposed | None:
        """The answer to a frontier whose pass was run ahead."""
        if self._chained is None or len(frontiers) > 1:
            return None
        (one,) = frontiers
        own = self._slots[one.slot]
        told = one.tree, one.nodes, few_widths(one.width), own.pending, own.features
        found = self._chained.layer(one.slot, *told)
        if found is None:
            return None
        own.answered.append(one)
        best = Best.read((found.numbers, found.scores), self._vocabulary)
        return Proposed(best.shared_out(frontiers, {one.slot: 0}), 1, ran_in=found.seconds)

    @torch.inference_mode()
    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        ready = self._ready(frontiers)
        if ready is not None:
            return ready
        for one in frontiers:
            own = self._slots[one.slot]
            if own.answered:  # another layer is asked for than was run ahead
                answered, own.answered = own.answered, []
                self._cache.committed({one.slot: 0})
                for before in answered:
                    self._proposed([before])
        return self._proposed(frontiers)

    def _proposed(self, frontiers: Sequence[Frontier]) -> Proposed:
        """The answer to some frontiers, by a pass."""
        known = [one for one in frontiers if self._slots[one.slot].pending]
        if not known:  # prompts of one token, of which no feature is known yet
            return Proposed([Candidates.unknown(one.nodes) for one in frontiers])
        if not self._in_round():
            self._given.clear()
            self._rows.clear()
        first = all(self._slots[one.slot].staged is None for one in known)
        reading = self._read_first([one.slot for one in known if self._slots[one.slot].waits_long])
        before, staged = self.executor.preparations, {}
        for one in sorted(known, key=lambda one: one.slot):
            own = self._slots[one.slot]
            if own.staged is None:
                own.features = [torch.cat(own.features)] if len(own.features) > 1 else own.features
                kept = self._given.keep(own.features[0]) if first else self._rows.keep(self._fuse(own.features[0]))
                own.places = kept.tolist()
            staged[one.slot] = own.stage(one.tree, one.nodes)
            own.round = self._round
        inputs = self.executor.inputs(staged)
        # before a frontier's rows, pairs that were only pending
        places, starts = last_rows(inputs.layout.starts, {one.slot: len(one.nodes) for one in known})
        best = self._run(inputs, [*staged], places, max(one.width for one in known), first)
        return Proposed(best.shared_out(frontiers, starts), 1, reading, self.executor.preparations > before)

    def _read_first(self, slots: Sequence[int]) -> Reading | None:
        """As `_catch_up`; returns what it took."""
        tokens = sum([len(self._slots[slot].pending) - 1 for slot in slots])
        return timed_reading(self._device, tokens, lambda: self._catch_up(slots))

    def _run(self, inputs: PassInputs, slots: list[int], ends: IntArray, width: int, first: bool) -> Best:
        """Run the new pairs of these slots, keep the states that come out, and find the best tokens after `ends`.

        Args:
            inputs: of the pass.
            slots: whose pairs they are, ascending.
            ends: rows behind which tokens are wanted, ascending.
            width: how many.
            first: all pairs have features of the target, and none has what the head made.
        """
        counts = inputs.layout.queries
        staged = [self._slots[slot] for slot in slots]
        sources = np.concatenate([own.sources(inputs.counts[slot]) for slot, own in zip(slots, staged, strict=True)])
        made = self._rows.reserve(counts)
        starts = inputs.layout.starts
        for slot, own in zip(slots, staged, strict=True):
            own.note(made[starts[slot] : starts[slot + 1]])
        width = few_widths(width)
        more = {
            "sources": Numbers(sources, one_each=True),
            "made": Numbers(made, self._rows.padding, one_each=True),
            "ends": Numbers(ends),
        }
        found = self.executor.run(inputs, partial(self._drafted, width, first), (width, first), more)
        return Best.lasting(self.executor, found, len(ends), self._vocabulary)

    def _drafted(self, width: int, first: bool, view: TreeView) -> tuple[Tensor, Tensor]:
        """One pass: what `best_numbers` finds behind the `ends`, and the scores there."""
        table = self._given.table if first else self._rows.table
        states = table.index_select(0, view.more["sources"])
        if first:
            states = self._fuse(states)
        made, hidden = self.head(*self._step(view.ids[None], states[None], view.positions[None], view.attention))
        self._rows.table.index_copy_(0, view.more["made"], made[0])
        scores = self.head.logits(hidden[0].index_select(0, view.more["ends"])).float()
        return self.executor.best_numbers(scores, width), scores

    def commit(self, committed: Mapping[int, Committed]) -> None:
        self._round += 1
        paths, waiting = {}, dict[int, Tensor | None]()
        for slot, one in committed.items():
            own = self._slots[slot]
            assert one.features is not None
            new = len(one.tokens)
            features = one.features if one.features.shape[0] == new else one.features[:new]  # `len` takes far longer
            if own.answered or own.came:  # what was run ahead stands in the cache
                self._cache.committed({slot: len(own.pending)})
                own.restart(one.tokens.tolist())
                own.features = [features]
                continue
            if own.staged is None:  # nothing was drafted: the pairs before are still to be run
                own.pending += one.tokens.tolist()
                own.features.append(features)
                waiting[slot] = features
                continue
            paths[slot] = np.arange(len(own.pending))  # of these the features were true; the tree's were guesses
            own.restart(one.tokens.tolist())
            own.features = [features]
        if paths:
            self.executor.commit(paths)
        if waiting:
            self._bound(waiting)


def token_bytes(features: Tensor) -> int:
    """Of the features of one token."""
    return features.shape[1] * features.element_size()
