"""The running side of EAGLE's heads: drafting over growing trees with their own cache."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import attrs
import numpy as np
import torch
from torch import Tensor

from talon_core.attention import AttentionBackend
from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drafter import Committed, Drafter, Prompt
from talon_core.hf.attention import Pass, TreePass
from talon_core.hf.cache import TreeCache
from talon_core.hf.runner import PREFILL_CHUNK, fed, pass_inputs
from talon_core.tree import IntArray, TokenTree
from talon_drafters.best import Best, nothing
from talon_drafters.heads.layers import FeatureHead
from talon_drafters.staging import StagedRow


@attrs.frozen(eq=False)
class _Staged:
    """One sequence's part of a pass.

    Attributes:
        tree: what is in the cache, and the new nodes behind it.
        first: the first new node.
        states: what the head reads at the new nodes beside their tokens, shape `(new, hidden)`.
    """

    tree: TokenTree
    first: int
    states: Tensor


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
    ) -> None:
        self.head = head.eval().requires_grad_(False)
        self._embed = embed
        self._vocab_size = vocab_size
        self._attention = attention
        self._session: AbstractContextManager[object] = session if session is not None else nullcontext()
        self._select = select
        self._described = described or {}
        self._cache = TreeCache()
        self._rows: list[StagedRow] = []
        self._states: list[Tensor] = []  # for each sequence those of its pending pairs, (pending, hidden)
        self._made: list[Tensor] = []  # what the head made at each staged row, (staged, hidden)
        self._device = next(head.parameters()).device
        self._vocabulary: IntArray | None = head.target_ids.cpu().numpy() if head.target_ids is not None else None

    def describe(self) -> Mapping[str, object]:
        return self._described

    def session(self) -> AbstractContextManager[object]:
        return self._session

    @torch.inference_mode()
    def begin(self, prompts: Sequence[Prompt]) -> None:
        self._cache.reset(len(prompts), max(len(prompt.ids) for prompt in prompts) * 3 // 2 + 256)
        self._rows, self._states, self._made = [], [], []
        for row, prompt in enumerate(prompts):
            assert prompt.features is not None
            states = self._fuse(prompt.features)  # (prompt - 1, hidden)
            tokens = prompt.ids[1:]
            last = max(len(tokens) - 1, 0)  # the last pair waits for the first round: its answer is wanted
            for start in range(0, last, PREFILL_CHUNK):
                self._prefill(row, tokens[start:last][:PREFILL_CHUNK], states[start:last][:PREFILL_CHUNK])
            self._rows.append(StagedRow(tokens[last:].tolist()))
            self._states.append(states[last:])
            self._made.append(states[:0])

    def _fuse(self, features: Tensor) -> Tensor:
        return self.head.fuse(self._select(features).to(self.head.dtype))

    def _prefill(self, row: int, tokens: IntArray, states: Tensor) -> None:
        with fed(self._cache, [row], [len(tokens)], self._attention) as (positions, this_pass):
            self._run(torch.as_tensor(tokens)[None], states[None], positions, this_pass)

    def _run(self, tokens: Tensor, states: Tensor, positions: Tensor, this_pass: Pass) -> tuple[Tensor, Tensor]:
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
            return [nothing(*of) for of in zip(frontiers, choices, strict=True)]
        staged = [self._stage(row, *of) for row, of in enumerate(zip(trees, frontiers, strict=True))]
        made, hidden, starts = self._forward(staged)
        self.passes += 1
        ends: list[int] = []  # where the frontier's rows are; before them, pairs that were only pending
        for row, one in enumerate(staged):
            if one is None:
                continue
            new = made[starts[row] : starts[row + 1]]
            self._made[row] = new if not one.first else torch.cat([self._made[row], new])
            ends += range(starts[row + 1] - len(frontiers[row]), starts[row + 1])
        if len(ends) < len(hidden):
            hidden = hidden[torch.tensor(ends, device=self._device)]
        best = Best.of(self.head.logits(hidden), max(widths), self._vocabulary, self._vocab_size)
        proposed = []
        start = 0
        for one, tree, frontier, width, choice in zip(staged, trees, frontiers, widths, choices, strict=True):
            if one is None:
                proposed.append(nothing(frontier, choice))
                continue
            proposed.append(best.candidates(np.arange(start, start + len(frontier)), tree, frontier, width, choice))
            start += len(frontier)
        return proposed

    def _stage(self, row: int, tree: TokenTree, frontier: IntArray) -> "_Staged | None":
        """What is staged with the frontier added; None if nothing can be, or need be, drafted from it."""
        one = self._rows[row]
        if not one.pending or not len(frontier):
            return None
        if one.staged is None:
            return _Staged(*one.stage(tree, frontier), self._states[row])
        staged, first = one.stage(tree, frontier)
        parents = torch.tensor(staged.parents[first:], device=self._device)
        return _Staged(staged, first, self._made[row].index_select(0, parents))

    def _forward(self, staged: "Sequence[_Staged | None]") -> tuple[Tensor, Tensor, list[int]]:
        """What the head makes at the new nodes and what `logits` wants, and where those of each sequence start."""
        inputs = pass_inputs(
            [one.tree if one else None for one in staged], [one.first if one else 0 for one in staged],
            self._cache.lengths,
        )  # fmt: skip
        self._cache.stage(inputs.counts)
        states = [one.states for one in staged if one is not None]
        joined = states[0] if len(states) == 1 else torch.cat(states)  # (queries, hidden)
        this_pass = TreePass(inputs.layout, self._attention)
        made, hidden = self._run(inputs.ids[None], joined[None], inputs.positions[None], this_pass)
        self._cache.staged_now()
        return made[0], hidden[0], inputs.layout.starts.tolist()

    @torch.inference_mode()
    def commit(self, committed: Sequence[Committed]) -> None:
        paths = []
        for row, one in enumerate(committed):
            mine = self._rows[row]
            if not len(one.tokens):  # it is over
                paths.append(np.empty(0, dtype=np.int64))
                continue
            assert one.features is not None
            states = self._fuse(one.features)
            if mine.staged is None:  # nothing was drafted: the pairs before are still to be run
                mine.pending = [*mine.pending, *one.tokens.tolist()]
                self._states[row] = torch.cat([self._states[row], states])
                paths.append(np.empty(0, dtype=np.int64))
                continue
            paths.append(np.arange(len(mine.pending)))  # of these the features were true; the tree's were guesses
            mine.restart(one.tokens.tolist())
            self._states[row] = states
        self._cache.commit(paths)
