"""The running side of `hydra`."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from talon_core.attention import AttentionBackend
from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drafter import Committed, Drafter, Prompt
from talon_core.hf.attention import ATTENTION_NAME, PASS_KEYWORD
from talon_core.hf.cache import TreeCache
from talon_core.hf.checks import embedding_weight, output_weight
from talon_core.hf.device import RecordedFunctions
from talon_core.hf.inputs import fed
from talon_core.hf.model import set_implementation
from talon_core.hf.runner import PREFILL_CHUNK
from talon_core.hf.target import HFTarget
from talon_core.target import Target
from talon_core.tree import IntArray, TokenTree
from talon_drafters.best import Best, recorded_best
from talon_drafters.checkpoints.heads import Sizes
from talon_drafters.checkpoints.hydra import STEM, ReadHydra, hydra_of
from talon_drafters.head_drafter import (
    accelerated,
    checkpoint_for,
    shared_embedding,
    shared_output,
    transformers_target,
)
from talon_drafters.heads.hydra import HydraHeads

if TYPE_CHECKING:
    from talon_drafters.hydra import Hydra


def open_hydra(spec: "Hydra", target: Target) -> "HydraDrafter":
    """Read the heads that `spec` describes; raises as `DrafterSpec.open` does."""
    target = transformers_target(target, spec.name)
    checkpoint = checkpoint_for(target, spec.path, spec.name, STEM)
    sizes = Sizes.of(target)
    read = hydra_of(
        checkpoint,
        sizes,
        output_weight(target.model),
        target.model.config.get_text_config(),
    )
    width = int(embedding_weight(target.model).shape[1])
    if read.heads.config.grounded and width != sizes.hidden:
        raise checkpoint.error(f"reads token embeddings of width {sizes.hidden}; this target's have width {width}")
    return HydraDrafter(read, target)


class _States:
    """What the heads read of each sequence's states: that of the token before the root, through the prefix layer."""

    def __init__(self, heads: HydraHeads, attention: AttentionBackend) -> None:
        self._heads = heads
        self._attention = attention
        self._cache = TreeCache()
        self._unread: list[list[Tensor]] = []  # by sequence: states that came since the last one was asked for
        self._last: list[Tensor | None] = []
        if heads.prefix is not None:
            set_implementation(heads.prefix, ATTENTION_NAME)

    def begin(self, prompts: Sequence[Tensor | None]) -> None:
        self._unread = [[] for _ in prompts]
        self._last = [None] * len(prompts)
        self.add(prompts)
        longest = max(len(prompt) if prompt is not None else 0 for prompt in prompts)
        self._cache.reset(len(prompts), longest + longest // 2 + 256)

    def add(self, features: Sequence[Tensor | None]) -> None:
        """Each sequence's new states, shape `(new, hidden)`."""
        for unread, new in zip(self._unread, features, strict=True):
            if new is not None and len(new):
                unread.append(new if self._heads.prefix is not None else new[-1:].clone())

    def last(self) -> dict[int, Tensor]:
        """What is to be read, shape `(hidden,)`, by sequence; those without a state are left out."""
        for row, unread in enumerate(self._unread):
            if unread:
                states, prompt = torch.cat(unread), self._last[row] is None
                for start in range(0, len(states), PREFILL_CHUNK):
                    self._last[row] = self._encode(row, states[start : start + PREFILL_CHUNK], prompt)[-1]
                unread.clear()
        return {row: state for row, state in enumerate(self._last) if state is not None}

    def _encode(self, row: int, states: Tensor, prompt: bool) -> Tensor:
        """Run the prefix layer over new states of a sequence, its prompt's or not; both have shape `(new, hidden)`."""
        if self._heads.prefix is None:
            return states
        with fed(self._cache, [row], [len(states)], self._attention, prompt) as (positions, this_pass):
            options: dict[str, Any] = {PASS_KEYWORD: this_pass}
            encoded = self._heads.encode(
                states[None],
                position_ids=positions.to(states.device),
                past_key_values=self._cache,
                use_cache=True,
                **options,
            )
        return encoded[0]


class HydraDrafter(Drafter):
    """Runs one of Hydra's heads a layer, on the state of the token before the root and the path to each node.

    Args:
        read: the heads and their vocabulary.
        target: whose states and embeddings they read.
    """

    def __init__(self, read: ReadHydra, target: HFTarget) -> None:
        self.max_depth = read.heads.config.num_heads
        self._heads = read.heads
        self._output = shared_output(target, read.vocabulary) if read.heads.outputs is None else None
        self._session = accelerated(target, read.heads, self._output)
        self._embed = shared_embedding(target.model)
        self._vocabulary = None if read.vocabulary is None else read.vocabulary.numpy()
        self._vocab_size = target.vocab_size
        self._device = target.device
        self._states = _States(read.heads, target.attention)
        self._functions = RecordedFunctions(target.recorder())

    def session(self) -> AbstractContextManager[object]:
        return self._session

    def begin(self, prompts: Sequence[Prompt]) -> None:
        self._states.begin([prompt.features for prompt in prompts])

    @torch.inference_mode()
    def propose(
        self,
        trees: Sequence[TokenTree],
        frontiers: Sequence[IntArray],
        widths: Sequence[int],
        choices: Sequence[Choices],
    ) -> list[Candidates]:
        states = self._states.last()
        asked = [len(frontier) if row in states else 0 for row, frontier in enumerate(frontiers)]
        if not any(asked):
            return [Candidates.nothing(*of) for of in zip(frontiers, choices, strict=True)]
        paths = [
            (row, tree.tokens[tree.path(int(node))])
            for row, (tree, frontier) in enumerate(zip(trees, frontiers, strict=True))
            for node in frontier[: asked[row]]
        ]
        best = self._best(states, paths, max(widths))
        self.passes += 1
        return best.shared_out(asked, trees, frontiers, widths, choices)

    def _best(self, states: dict[int, Tensor], paths: list[tuple[int, IntArray]], width: int) -> Best:
        """The best tokens after each sequence's path of tokens, the root first; a row for each path."""
        lengths = [len(tokens) for _, tokens in paths]
        found: list[Best] = []
        order: list[int] = []
        for length in sorted(set(lengths)):
            group = [i for i, own in enumerate(lengths) if own == length]
            inputs = [torch.stack([states[paths[i][0]] for i in group])]  # (group, hidden)
            if self._heads.config.grounded:
                inputs.append(torch.as_tensor(np.stack([paths[i][1] for i in group]), device=self._device))
            scored = partial(self._scores, length - 1)
            found.append(
                recorded_best(
                    self._functions, length, scored, tuple(inputs), 1, width, self._vocabulary, self._vocab_size
                )
            )
            order += group
        return found[0] if len(found) == 1 else Best.joined(found, np.argsort(order))

    def _scores(self, head: int, states: Tensor, tokens: Tensor | None = None) -> Tensor:
        """One head's scores, shape `(paths, draft vocab)`."""
        read = states if tokens is None else torch.cat([states, self._embed(tokens).flatten(1)], dim=-1)
        return self._heads.logits(head, read, self._output)

    def commit(self, committed: Sequence[Committed]) -> None:
        self._states.add([one.features for one in committed])
