"""The running side of `medusa`."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from talon_core.candidates import Candidates
from talon_core.drafter import Committed, Drafter, Frontier, Part, Proposed
from talon_core.runtime.best import Best, best_by
from talon_core.runtime.embeddings import like_output
from talon_core.runtime.network import NetworkTarget, network_target
from talon_core.runtime.open_slots import OpenSlots
from talon_core.target import Target, check_open
from talon_core.tree import IntArray
from talon_drafters.checkpoints.reading import Sizes
from talon_drafters.heads.opening import checkpoint_for, output_of
from talon_drafters.medusa.files import STEM, ReadMedusa, medusa_of

if TYPE_CHECKING:
    from talon_drafters.medusa.options import Medusa


def open_medusa(spec: "Medusa", target: Target) -> "MedusaDrafter":
    """Read the heads that `spec` describes; raises as `DrafterSpec.open` does."""
    target = network_target(target, spec.name)
    checkpoint = checkpoint_for(target.model, spec.path, spec.name, STEM)
    return MedusaDrafter(
        medusa_of(checkpoint, Sizes.of(target), like_output(target.model)),
        target,
    )


class MedusaDrafter(Drafter):
    """Runs Medusa's heads once a round, on the state of the token before the root.

    Args:
        read: the heads and their vocabulary.
        target: whose states they read.

    Attributes:
        executor: runs the heads' passes; its `failure` says why they are not recorded.
    """

    def __init__(self, read: ReadMedusa, target: NetworkTarget) -> None:
        self.max_depth = read.heads.config.num_heads
        self._heads = read.heads
        self._output, self._vocabulary, self._session = output_of(read.heads, read.vocabulary, target)
        self.executor = target.executor()
        self._states = OpenSlots[list[Tensor]]()  # the state of the token before the root, (hidden,), if one is known
        self._best: dict[int, tuple[Best, int]] = {}  # this round's rows, one for each head, and the first of a slot's

    def session(self) -> AbstractContextManager[object]:
        return self._session

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self._states[slot] = []
        self._best.pop(slot, None)

    def resume(self, slot: int, prompt: IntArray, room: int, source: int, length: int) -> int:
        check_open([source], self._states)
        self.open(slot, prompt, room)
        return max(length - 1, 0)  # one state must be heard of

    def close(self, slot: int) -> None:
        del self._states[slot]
        self._best.pop(slot, None)

    def read(self, parts: Mapping[int, Part]) -> None:
        for slot, part in parts.items():
            self._heard(slot, part.features)

    def commit(self, committed: Mapping[int, Committed]) -> None:
        for slot, one in committed.items():
            self._heard(slot, one.features)

    def _heard(self, slot: int, features: Tensor | None) -> None:
        check_open([slot], self._states)
        self._best.pop(slot, None)
        if features is not None and len(features):
            self._states[slot] = [features[-1].clone()]  # so that the others can be freed

    @torch.inference_mode()
    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        known = [one for one in frontiers if self._states[one.slot]]
        new, before = [one.slot for one in known if one.slot not in self._best], self.executor.preparations
        if new:
            best = self._run(new, max(one.width for one in known))
            heads = len(self._heads.blocks)
            self._best |= {slot: (best, place * heads) for place, slot in enumerate(new)}
        answers = [self._offered(one) for one in frontiers]
        return Proposed(answers, 1 if new else 0, prepared=self.executor.preparations > before)

    def _offered(self, frontier: Frontier) -> Candidates:
        if frontier.slot not in self._best:
            return Candidates.unknown(frontier.nodes)
        best, first = self._best[frontier.slot]
        if best.width < min(frontier.width, best.scores.shape[1]):
            best = Best.of(best.scores, frontier.width, self._vocabulary, self.executor)
            self._best[frontier.slot] = best, first
        depths = frontier.tree.depths[frontier.nodes]
        assert (depths < len(self._heads.blocks)).all(), "asked for deeper than max_depth"
        return best.candidates(first + depths, frontier)

    def _run(self, slots: Sequence[int], width: int) -> Best:
        """All heads' best tokens for these slots, a row for each head of each."""
        states = torch.cat([torch.stack(self._states[slot]) for slot in slots])
        heads = len(self._heads.blocks)
        return best_by(self.executor, None, self._scores, (states,), width, self._vocabulary, heads)

    def _scores(self, states: Tensor) -> Tensor:
        """All heads' scores, shape `(sequences * heads, draft vocab)`."""
        logits: Tensor = self._heads(states, self._output)  # (heads, sequences, draft vocab)
        return logits.transpose(0, 1).flatten(0, 1)
