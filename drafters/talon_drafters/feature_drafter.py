"""The running side of EAGLE's heads: drafting over growing trees with their own cache."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor

from talon_core.attention import AttentionBackend, DeviceBackend
from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drafter import Committed, Drafter, Prompt
from talon_core.hf.attention import Pass, TreePass
from talon_core.hf.device import DevicePass, Recorder, cache_for
from talon_core.hf.inputs import PassInputs, fed, pass_inputs
from talon_core.hf.runner import PREFILL_CHUNK
from talon_core.tree import IntArray, TokenTree
from talon_drafters.best import Best, best_numbers, few_widths, last_rows, taken
from talon_drafters.heads.layers import FeatureHead
from talon_drafters.staging import StagedRow


class _Row(StagedRow):
    """One sequence: what is staged, and where its states are.

    Attributes:
        places: of the states of the pending pairs; when these are staged, of what was made at each staged node.
    """

    def __init__(self, pending: list[int]) -> None:
        super().__init__(pending)
        self.places: list[int] = []
        self._fresh = True

    def restart(self, pending: list[int]) -> None:
        super().restart(pending)
        self._fresh = True

    def stage_for(self, tree: TokenTree, frontier: IntArray) -> tuple[TokenTree | None, int]:
        """As `stage`; None if nothing can be, or need be, drafted."""
        if not self.pending or not len(frontier):
            return None, 0
        return self.stage(tree, frontier)

    def sources(self, count: int) -> IntArray:
        """Where the states are that the head reads at the last `count` staged nodes."""
        if self.staged is None or not count:
            return np.empty(0, dtype=np.int64)
        if self._fresh:
            return np.array(self.places, dtype=np.int64)
        return np.array(self.places, dtype=np.int64)[self.staged.parents[-count:]]

    def note(self, places: IntArray) -> None:
        """Where what is made at the last staged nodes will be."""
        if len(places):
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
        attention: computes tree attention.
        session: a context in which the head's layers run faster.
        select: from the target's features to those that the head was made for.
        described: what its files are, for `describe`.
        recorder: records passes, so that they are repeated without Python; needs a `DeviceBackend`.
    """

    def __init__(
        self,
        head: FeatureHead,
        embed: Callable[[Tensor], Tensor],
        vocab_size: int,
        attention: AttentionBackend,
        session: AbstractContextManager[object] | None = None,
        select: Callable[[Tensor], Tensor] = lambda features: features,
        described: Mapping[str, object] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.head = head.eval().requires_grad_(False)
        self._embed = embed
        self._vocab_size = vocab_size
        self._attention = attention
        self._session: AbstractContextManager[object] = session if session is not None else nullcontext()
        self._select = select
        self._described = described or {}
        self._rows: list[_Row] = []
        self._device = next(head.parameters()).device
        self._states = torch.empty((0, 0), device=self._device)  # pending ones, then what was made; `_Row` says where
        self._filled = 0
        self._cache, self._passes = cache_for(attention, self._device, recorder)
        self._vocabulary: IntArray | None = head.target_ids.cpu().numpy() if head.target_ids is not None else None

    def describe(self) -> Mapping[str, object]:
        return self._described

    @property
    def not_recorded(self) -> str | None:
        """Why passes are not recorded any more, if recording one has failed."""
        return self._passes.failure if self._passes is not None else None

    def session(self) -> AbstractContextManager[object]:
        return self._session

    @torch.inference_mode()
    def begin(self, prompts: Sequence[Prompt]) -> None:
        self._cache.reset(len(prompts), max(len(prompt.ids) for prompt in prompts) * 3 // 2 + 256)
        self._rows = []
        pending: list[Tensor] = []
        for row, prompt in enumerate(prompts):
            assert prompt.features is not None
            states = self._fuse(prompt.features)  # (prompt - 1, hidden)
            tokens = prompt.ids[1:]
            last = max(len(tokens) - 1, 0)  # the last pair waits for the first round: its answer is wanted
            for start in range(0, last, PREFILL_CHUNK):
                self._prefill(row, tokens[start:last][:PREFILL_CHUNK], states[start:last][:PREFILL_CHUNK])
            self._rows.append(_Row(tokens[last:].tolist()))
            pending.append(states[last:])
        self._keep_pending(pending)

    def _keep_pending(self, states: list[Tensor]) -> None:
        """A new round: these are the states of each sequence's pending pairs."""
        joined = torch.cat(states)
        self._filled = 0
        if not len(self._states):
            self._states = joined[:0]
        self._reserve(len(joined))
        self._states[: len(joined)] = joined
        self._filled = len(joined)
        ends = np.cumsum([len(own) for own in states])
        for row, own, end in zip(self._rows, states, ends.tolist(), strict=True):
            row.places = list(range(end - len(own), end))

    def _reserve(self, more: int) -> None:
        """Room for so many states behind those there are, and one that is padding."""
        need = self._filled + more + 1
        if need > len(self._states):
            grown = self._states.new_empty((max(2 * need, 256), self._states.shape[1]))
            grown[: self._filled] = self._states[: self._filled]
            self._states = grown
            if self._passes is not None:
                self._passes.forget()

    def _fuse(self, features: Tensor) -> Tensor:
        return self.head.fuse(self._select(features).to(self.head.dtype))

    def _prefill(self, row: int, tokens: IntArray, states: Tensor) -> None:
        with fed(self._cache, [row], [len(tokens)], self._attention) as (positions, this_pass):
            self._forward(torch.as_tensor(tokens)[None], states[None], positions, this_pass)

    def _forward(self, tokens: Tensor, states: Tensor, positions: Tensor, this_pass: Pass) -> tuple[Tensor, Tensor]:
        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self._cache.update(key, value, layer)
            return this_pass.attend(query, keys, values, query.shape[-1] ** -0.5)

        embeddings = self._embed(tokens.to(self._device)).to(states.dtype)
        made, hidden = self.head(embeddings, states, positions.to(self._device), attend)
        return made, hidden

    @torch.inference_mode()
    def propose(
        self,
        trees: Sequence[TokenTree],
        frontiers: Sequence[IntArray],
        widths: Sequence[int],
        choices: Sequence[Choices],
    ) -> list[Candidates]:
        if not any(row.pending and len(of) for row, of in zip(self._rows, frontiers, strict=True)):
            # prompts of one token, of which no feature is known yet
            return [Candidates.nothing(*of) for of in zip(frontiers, choices, strict=True)]
        staged = [
            row.stage_for(tree, frontier) for row, tree, frontier in zip(self._rows, trees, frontiers, strict=True)
        ]
        inputs = pass_inputs([tree for tree, _ in staged], [first for _, first in staged], self._cache.lengths)
        asked = [len(of) if tree is not None else 0 for (tree, _), of in zip(staged, frontiers, strict=True)]
        # before a frontier's rows, pairs that were only pending
        best = self._run(inputs, last_rows(inputs.layout.starts, asked), max(widths))
        self.passes += 1
        return best.shared_out(asked, trees, frontiers, widths, choices)

    def _run(self, inputs: PassInputs, ends: IntArray, width: int) -> Best:
        """Run the new pairs, keep the states that come out, and find the best tokens after the pairs `ends`."""
        counts = inputs.layout.queries
        sources = np.concatenate([row.sources(count) for row, count in zip(self._rows, inputs.counts, strict=True)])
        self._reserve(counts)
        made = np.arange(self._filled, self._filled + counts)
        for row, places in zip(self._rows, np.split(made, inputs.layout.starts[1:-1]), strict=True):
            row.note(places)
        self._filled += counts
        if self._passes is not None:
            width = few_widths(width)
            asked = np.zeros(counts, dtype=np.int64)
            asked[: len(ends)] = ends
            more = {"sources": sources, "made": made, "ends": asked}
            fill = {"sources": 0, "made": len(self._states) - 1, "ends": 0}
            found = self._passes.run(inputs, partial(self._drafted, width), width, more, fill)
            self._cache.staged_now(inputs.counts)
            return Best.recorded(found, len(ends), self._vocabulary, self._vocab_size)
        self._cache.stage(inputs.counts)
        states = self._states.index_select(0, torch.from_numpy(sources).to(self._device))
        this_pass = TreePass(inputs.layout, self._attention.attend)
        states, hidden = self._forward(inputs.ids[None], states[None], inputs.positions[None], this_pass)
        self._cache.staged_now(inputs.counts)
        self._states[made[0] : made[0] + counts] = states[0]
        scores = self.head.logits(taken(hidden[0], ends))
        return Best.of(scores, width, self._vocabulary, self._vocab_size)

    def _drafted(self, width: int, device_pass: DevicePass) -> tuple[Tensor, Tensor]:
        """The same on the device: what `best_numbers` gives, and the scores; rows behind the `ends` are padding."""
        assert isinstance(self._attention, DeviceBackend)
        more = {name: numbers.long() for name, numbers in device_pass.more.items()}
        states = self._states.index_select(0, more["sources"])
        this_pass = TreePass(device_pass.layout, self._attention.attend_packed)
        states, hidden = self._forward(
            device_pass.ids.long()[None], states[None], device_pass.positions.long()[None], this_pass
        )
        self._states.index_copy_(0, more["made"], states[0])
        scores = self.head.logits(hidden[0].index_select(0, more["ends"])).float()
        return best_numbers(scores, width), scores

    @torch.inference_mode()
    def commit(self, committed: Sequence[Committed]) -> None:
        fused = self._fuse(torch.cat([_features(one) for one in committed]))
        paths, pending = [], []
        start = 0
        for row, one in zip(self._rows, committed, strict=True):
            states = fused[start : start + len(one.tokens)]
            start += len(one.tokens)
            if row.staged is None:  # nothing was drafted: the pairs before are still to be run
                paths.append(np.empty(0, dtype=np.int64))
                row.pending = [*row.pending, *one.tokens.tolist()]
                old = self._states.index_select(0, torch.tensor(row.places, dtype=torch.int64, device=self._device))
                pending.append(torch.cat([old, states]))
                continue
            paths.append(np.arange(len(row.pending)))  # of these the features were true; the tree's were guesses
            row.restart(one.tokens.tolist())
            pending.append(states)
        self._cache.commit(paths)
        self._keep_pending(pending)


def _features(committed: Committed) -> Tensor:
    assert committed.features is not None
    return committed.features
