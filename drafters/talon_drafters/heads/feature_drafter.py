"""The running side of EAGLE's heads: drafting over growing trees with their own cache."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor

from talon_core.candidates import Candidates
from talon_core.drafter import Committed, Drafter, Frontier, Part, Proposed
from talon_core.runtime.best import Best, Vocabulary, few_widths, last_rows
from talon_core.runtime.executor import Executor, Numbers, TreeView
from talon_core.runtime.inputs import PassInputs
from talon_core.runtime.passes import Pass
from talon_core.runtime.rows import KeptRows
from talon_core.runtime.staging import SPARE_ROWS, StagedSlot
from talon_core.tree import IntArray
from talon_drafters.heads.layers import FeatureHead


class _Slot(StagedSlot):
    """One slot: what is staged, and where its states are.

    Args:
        prompt: token ids.
        states: of the pending pairs: none yet.

    Attributes:
        prompt: likewise.
        states: what the head reads at the pending pairs, shape `(pending, hidden)`.
        places: of these states in the drafter's `KeptRows`; when they are staged, of what was made at each staged node.
        read: how many tokens of the prompt the target has read.
        last_read: what the head reads of the last of them, shape `(1, hidden)`.
    """

    def __init__(self, prompt: IntArray, states: Tensor) -> None:
        super().__init__([])
        self.prompt = prompt
        self.states = states
        self.places: list[int] = []
        self.read = 0
        self.last_read = states
        self._fresh = True

    def restart(self, pending: list[int]) -> None:
        super().restart(pending)
        self._fresh = True

    def sources(self, count: int) -> IntArray:
        """Where the states are that the head reads at the last `count` staged nodes."""
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

    Args:
        head: the network, on the target's device.
        embed: token ids, int64, to embeddings.
        vocab_size: the target's.
        executor: runs the head, on its device.
        session: a context in which the head's layers run faster.
        select: from the target's features to those that the head was made for.
        described: what its files are, for `describe`.

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
    ) -> None:
        self.head = head.eval().requires_grad_(False)
        self._embed = embed
        self._session: AbstractContextManager[object] = session if session is not None else nullcontext()
        self._select = select
        self._described = described or {}
        self._slots: dict[int, _Slot] = {}  # by slot
        self._device = next(head.parameters()).device
        self._no_states = torch.empty((0, 0), dtype=head.dtype, device=self._device)
        self._rows = KeptRows(executor)  # of the round's pending pairs, and what was made in it; `_Slot` says where
        self.executor = executor
        self._cache = executor.cache
        ids = head.target_ids.cpu().numpy() if head.target_ids is not None else None
        self._vocabulary = Vocabulary(vocab_size, ids)

    def describe(self) -> Mapping[str, object]:
        return self._described

    def session(self) -> AbstractContextManager[object]:
        return self._session

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self._slots[slot] = _Slot(prompt, self._no_states)
        self._cache.open(slot, room + SPARE_ROWS)

    def resume(self, slot: int, prompt: IntArray, room: int, source: int, length: int) -> int:
        before = self._slots[source]
        # a pair belongs to what is shared if its second token does
        pairs = self._cache.resume(slot, room + SPARE_ROWS, source, max(length - 1, 0))
        own = self._slots[slot] = _Slot(prompt, self._no_states)
        if before.read != length or pairs != length - 1:
            return pairs
        own.restart([int(prompt[length])])
        own.read, own.states, own.last_read = length, before.last_read, before.last_read
        return length

    def close(self, slot: int) -> None:
        del self._slots[slot]
        self._cache.close(slot)

    @torch.inference_mode()
    def read(self, parts: Mapping[int, Part]) -> None:
        for slot, part in parts.items():
            assert part.features is not None
            own = self._slots[slot]
            tokens = [*own.pending, *own.prompt[part.start + 1 : part.end + 1].tolist()]
            states = _joined(own.states, self._fuse(part.features))  # (pairs, hidden)
            last = max(len(tokens) - 1, 0)  # the last pair waits for what comes next: its answer is wanted
            for start in range(0, last, self.executor.prompt_tokens):
                end = min(last, start + self.executor.prompt_tokens)
                self._prefill(slot, tokens[start:end], states[start:end])
            own.restart(tokens[last:])
            own.states = own.last_read = states[last:].clone()  # so that the others can be freed
            own.read = part.end

    def _fuse(self, features: Tensor) -> Tensor:
        return self.head.fuse(self._select(features).to(self.head.dtype))

    def _prefill(self, slot: int, tokens: list[int], states: Tensor) -> None:
        with self.executor.reading([slot], [len(tokens)]) as (positions, this_pass):
            self._forward(torch.tensor(tokens)[None], states[None], positions, this_pass)

    def _forward(self, tokens: Tensor, states: Tensor, positions: Tensor, this_pass: Pass) -> tuple[Tensor, Tensor]:
        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self._cache.update(key, value, layer)
            return this_pass.attend(query, keys, values, query.shape[-1] ** -0.5)

        embeddings = self._embed(tokens.to(self._device)).to(states.dtype)
        made, hidden = self.head(embeddings, states, positions.to(self._device), attend)
        return made, hidden

    @torch.inference_mode()
    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        known = [one for one in frontiers if self._slots[one.slot].pending]
        if not known:  # prompts of one token, of which no feature is known yet
            return Proposed([Candidates.unknown(one.nodes) for one in frontiers])
        if not any(own.staged is not None for own in self._slots.values()):  # a new round
            self._rows.clear()
        staged = {}
        for one in sorted(known, key=lambda one: one.slot):
            own = self._slots[one.slot]
            if own.staged is None:
                own.places = self._rows.keep(own.states).tolist()
            staged[one.slot] = own.stage(one.tree, one.nodes)
        inputs = self.executor.inputs(staged)
        # before a frontier's rows, pairs that were only pending
        places, first = last_rows(inputs.layout.starts, {one.slot: len(one.nodes) for one in known})
        best = self._run(inputs, [*staged], places, max(one.width for one in known))
        return Proposed(best.shared_out(frontiers, first), 1)

    def _run(self, inputs: PassInputs, slots: list[int], ends: IntArray, width: int) -> Best:
        """Run the new pairs of these slots, keep the states that come out, and find the best tokens after `ends`."""
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
        found = self.executor.run(inputs, partial(self._drafted, width), width, more)
        return Best.lasting(self.executor, found, len(ends), self._vocabulary)

    def _drafted(self, width: int, view: TreeView) -> tuple[Tensor, Tensor]:
        """One pass: what `best_numbers` finds behind the `ends`, and the scores there."""
        states = self._rows.table.index_select(0, view.more["sources"])
        made, hidden = self._forward(view.ids[None], states[None], view.positions[None], view.attention)
        self._rows.table.index_copy_(0, view.more["made"], made[0])
        scores = self.head.logits(hidden[0].index_select(0, view.more["ends"])).float()
        return self.executor.best_numbers(scores, width), scores

    @torch.inference_mode()
    def commit(self, committed: Mapping[int, Committed]) -> None:
        fused = self._fuse(torch.cat([_features(one) for one in committed.values()]))
        paths = {}
        start = 0
        for slot, one in committed.items():
            states = fused[start : start + len(one.tokens)]
            start += len(states)
            own = self._slots[slot]
            if own.staged is None:  # nothing was drafted: the pairs before are still to be run
                own.pending = [*own.pending, *one.tokens.tolist()]
                own.states = _joined(own.states, states)
                continue
            paths[slot] = np.arange(len(own.pending))  # of these the features were true; the tree's were guesses
            own.restart(one.tokens.tolist())
            own.states = states
        self.executor.commit(paths)


def _features(committed: Committed) -> Tensor:
    assert committed.features is not None
    return committed.features


def _joined(before: Tensor, new: Tensor) -> Tensor:
    return torch.cat([before, new]) if len(before) else new
