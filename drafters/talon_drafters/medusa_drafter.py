"""The running side of `medusa`."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drafter import Committed, Drafter, Prompt
from talon_core.hf.checks import output_weight
from talon_core.hf.device import RecordedFunctions
from talon_core.hf.target import HFTarget
from talon_core.target import Target
from talon_core.tree import IntArray, TokenTree
from talon_drafters.best import Best, recorded_best
from talon_drafters.checkpoints.heads import Sizes
from talon_drafters.checkpoints.medusa import STEM, ReadMedusa, medusa_of
from talon_drafters.head_drafter import accelerated, checkpoint_for, shared_output, transformers_target

if TYPE_CHECKING:
    from talon_drafters.medusa import Medusa


def open_medusa(spec: "Medusa", target: Target) -> "MedusaDrafter":
    """Read the heads that `spec` describes; raises as `DrafterSpec.open` does."""
    target = transformers_target(target, spec.name)
    checkpoint = checkpoint_for(target, spec.path, spec.name, STEM)
    return MedusaDrafter(
        medusa_of(checkpoint, Sizes.of(target), output_weight(target.model)),
        target,
    )


class MedusaDrafter(Drafter):
    """Runs Medusa's heads once a round, on the state of the token before the root.

    Args:
        read: the heads and their vocabulary.
        target: whose states they read.
    """

    def __init__(self, read: ReadMedusa, target: HFTarget) -> None:
        self.max_depth = read.heads.config.num_heads
        self._heads = read.heads
        self._output = shared_output(target, read.vocabulary) if read.heads.outputs is None else None
        self._session = accelerated(target, read.heads, self._output)
        self._vocabulary = None if read.vocabulary is None else read.vocabulary.numpy()
        self._vocab_size = target.vocab_size
        self._functions = RecordedFunctions(target.recorder())
        self._states: list[Tensor | None] = []  # by sequence: the state of the token before the root, (hidden,)
        self._best: Best | None = None  # this round's, a row for each head of each sequence that is drafted for
        self._first: dict[int, int] = {}  # by sequence: the first of its rows

    def session(self) -> AbstractContextManager[object]:
        return self._session

    def begin(self, prompts: Sequence[Prompt]) -> None:
        self._states = [_last(prompt.features) for prompt in prompts]
        self._best = None

    @torch.inference_mode()
    def propose(
        self,
        trees: Sequence[TokenTree],
        frontiers: Sequence[IntArray],
        widths: Sequence[int],
        choices: Sequence[Choices],
    ) -> list[Candidates]:
        if self._best is None:
            asked = [row for row, state in enumerate(self._states) if state is not None and len(frontiers[row])]
            self._first = {row: place * len(self._heads.blocks) for place, row in enumerate(asked)}
            if asked:
                self._best = self._run(asked, max(widths))
        elif self._best.width < min(max(widths), self._best.scores.shape[1]):
            self._best = Best.of(self._best.scores, max(widths), self._vocabulary, self._vocab_size)
        proposed = []
        for row, (tree, frontier, width, choice) in enumerate(zip(trees, frontiers, widths, choices, strict=True)):
            if self._best is None or row not in self._first:
                proposed.append(Candidates.nothing(frontier, choice))
                continue
            depths = tree.depths[frontier]
            assert (depths < len(self._heads.blocks)).all(), "asked for deeper than max_depth"
            proposed.append(self._best.candidates(self._first[row] + depths, tree, frontier, width, choice))
        return proposed

    def _run(self, rows: Sequence[int], width: int) -> Best:
        """All heads' best tokens for these sequences, a row for each head of each."""
        states = torch.stack([state for state in (self._states[row] for row in rows) if state is not None])
        self.passes += 1
        return recorded_best(
            self._functions, None, self._scores, (states,), len(self._heads.blocks), width, self._vocabulary,
            self._vocab_size,
        )  # fmt: skip

    def _scores(self, states: Tensor) -> Tensor:
        """All heads' scores, shape `(sequences * heads, draft vocab)`."""
        logits: Tensor = self._heads(states, self._output)  # (heads, sequences, draft vocab)
        return logits.transpose(0, 1).flatten(0, 1)

    def commit(self, committed: Sequence[Committed]) -> None:
        states = [_last(one.features) for one in committed]
        self._states = [old if new is None else new for old, new in zip(self._states, states, strict=True)]
        self._best = None


def _last(features: Tensor | None) -> Tensor | None:
    """The last row, copied so that the others can be freed; None if there is none."""
    return features[-1].clone() if features is not None and len(features) else None
