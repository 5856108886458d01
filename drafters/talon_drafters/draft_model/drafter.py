"""The running side of `draft-model`: a causal LM over growing trees."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from talon_core.candidates import Candidates
from talon_core.drafter import Committed, Drafter, Frontier, Proposed
from talon_core.models.loading import load_model
from talon_core.runtime.best import Best, Vocabulary, last_rows, rows_at
from talon_core.runtime.catching_up import timed_reading
from talon_core.runtime.embeddings import vocabulary_size
from talon_core.runtime.fewer_layers import without_layers
from talon_core.runtime.network import NetworkTarget, network_target
from talon_core.runtime.open_slots import OpenSlots
from talon_core.runtime.row_sizes import in_rows_of, row_bytes
from talon_core.runtime.staging import SPARE_ROWS, StagedSlot
from talon_core.target import Target, check_open
from talon_core.tree import IntArray

if TYPE_CHECKING:
    from talon_core.hf.runner import ModelRunner
    from talon_drafters.draft_model.options import DraftModel


PART = 64
"""Tokens of a text that are read at once where there is time to spare: who asks meanwhile has to wait for them."""

LOGGER = logging.getLogger("talon_core.drafters")


def open_draft_model(spec: "DraftModel", target: Target) -> "ModelDrafter":
    """Load the drafter that `spec` describes; raises as `DrafterSpec.open` does."""
    from talon_core.hf.runner import ModelRunner

    target = network_target(target, spec.name)
    if spec.model is None:
        # the target's own layers are accelerated already while the target runs
        part = without_layers(target.model, spec.skip)
        runner = ModelRunner(part, target.executor())
        return ModelDrafter(runner, target.vocab_size, uses_target=True, counted=_counted(part, target))
    model, tokenizer = load_model(
        spec.model,
        trust_remote_code=spec.trust_remote_code,
        trusted_with=f"the drafter as {spec.name}:model={spec.model},trust_remote_code=true",
    )
    _check_vocabulary(spec.model, model, tokenizer, target)
    accelerator = target.accelerator
    why = accelerator.unavailable(model.device, model.dtype) if accelerator is not None else None
    if accelerator is not None and why is not None:
        LOGGER.warning("draft model '%s' runs without accelerator '%s': %s", spec.model, accelerator.name, why)
        accelerator = None
    runner = ModelRunner(model, target.executor(), accelerator)
    return ModelDrafter(runner, target.vocab_size, counted=_counted(model, target))


def _counted(model: Any, target: NetworkTarget) -> Callable[[int], int]:
    """From rows of the draft model's cache to those of the target's that take as much."""
    bytes_each = row_bytes(model.config.get_text_config(), model.dtype)
    return lambda rows: in_rows_of(target, rows, bytes_each)


def _check_vocabulary(name: str, model: Any, tokenizer: Any, target: NetworkTarget) -> None:
    size = vocabulary_size(model)
    if target.tokenizer is not None and tokenizer.get_vocab() != target.tokenizer.get_vocab():
        raise ValueError(
            f"the draft model '{name}' has another vocabulary than the target ({len(tokenizer)} and "
            f"{len(target.tokenizer)} tokens); it must share the target's tokenizer"
        )
    if target.tokenizer is None and size != target.vocab_size:
        raise ValueError(
            f"the draft model '{name}' has {size} token ids and the target {target.vocab_size}; they must be the same"
        )


class _Slot(StagedSlot):
    """One sequence: what is in the draft model's cache, and where."""

    def commit(self, committed: Committed) -> IntArray:
        """The staged nodes that stay in the cache, root side first; updates what is pending."""
        if self.staged is None:
            self.pending.extend(committed.tokens.tolist())
            return np.empty(0, dtype=np.int64)
        accepted = [self.staged_at[int(node)] for node in committed.nodes if int(node) in self.staged_at]
        stay = [*range(len(self.pending) - 1), *accepted]
        self.restart(committed.tokens[len(accepted) - 1 :].tolist())
        return np.array(stay, dtype=np.int64)


class ModelDrafter(Drafter):
    """Drafts with a causal LM, as far as its context goes; behind that it knows nothing.

    A prompt is read when somebody asks for a draft, or where there is time to spare, and not before. Paths of a tree
    are read in one pass.

    Args:
        runner: the model with its cache.
        vocab_size: the target's; ids beyond it are never proposed.
        uses_target: whether the model's layers are the target's.
        counted: from rows of its cache to those of the target's that take as much; by default none are counted.

    Attributes:
        executor: runs the model's passes; its `failure` says why they are not recorded.
    """

    takes_paths = True

    def __init__(
        self,
        runner: "ModelRunner",
        vocab_size: int,
        uses_target: bool = False,
        counted: Callable[[int], int] = lambda rows: 0,
    ) -> None:
        self._runner = runner
        self._counted = counted
        self.uses_target = uses_target
        self.executor = runner.executor
        self._vocabulary = Vocabulary(vocab_size)
        self._context = getattr(runner.model.config.get_text_config(), "max_position_embeddings", None)
        self._slots = OpenSlots[_Slot]()

    def session(self) -> AbstractContextManager[object]:
        return self._runner.session()

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        own = self._slots[slot] = _Slot(prompt.tolist())
        own.unread = True
        self._runner.open(slot, self._used(room))

    def resume(self, slot: int, prompt: IntArray, room: int, source: int, length: int) -> int:
        check_open([source], self._slots)
        taken = self._runner.resume(slot, self._used(room), source, length)
        own = self._slots[slot] = _Slot(prompt[taken:].tolist())
        own.unread = True
        return length  # what it has not taken over is in the prompt

    def _used(self, room: int) -> int:
        """Rows of the cache for a text of so many tokens: nothing is run behind the context."""
        return (room if self._context is None else min(room, self._context)) + SPARE_ROWS

    def rows(self, rooms: Mapping[int, int]) -> int:
        return self._counted(self._runner.cache.rows_for({slot: self._used(room) for slot, room in rooms.items()}))

    def close(self, slot: int) -> None:
        del self._slots[slot]
        self._runner.close(slot)

    def catch_up(self) -> bool:
        waiting = (slot for slot, own in self._slots.items() if own.waits_long and self._left(slot) > 0)
        slot = next(waiting, None)
        if slot is None:
            return False
        own = self._slots[slot]
        self._read({slot: min(len(own.pending) - 1, PART)})
        own.unread = len(own.pending) > 1
        return True

    def _read(self, counts: Mapping[int, int]) -> None:
        """Read the first pending tokens, so many of each slot."""
        waiting = {slot: self._slots[slot].pending for slot in counts}
        self._runner.read({slot: np.array(waiting[slot][:count], dtype=np.int64) for slot, count in counts.items()})
        for slot, count in counts.items():
            self._slots[slot].restart(waiting[slot][count:])

    def _left(self, slot: int) -> float:
        """For how many tokens, the root among them, there is room in the context."""
        pending = len(self._slots[slot].pending)
        root = self._runner.cache.lengths[slot] + pending - 1
        return inf if self._context is None else self._context - root

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        within = [one.above(self._left(one.slot)) for one in frontiers]
        known = [one for one in within if len(one.nodes)]
        if not known:
            return Proposed([Candidates.unknown(one.nodes) for one in frontiers])
        waiting = [one.slot for one in known if self._slots[one.slot].waits_long]
        counts = {slot: len(self._slots[slot].pending) - 1 for slot in waiting}
        reading = timed_reading(self.executor.device, sum(counts.values()), lambda: self._read(counts))
        before = self.executor.preparations
        ran = self._runner.run({one.slot: self._slots[one.slot].stage(one.tree, one.nodes) for one in known})
        # before a frontier, tokens that were not cached yet; behind the vocabulary, padding
        places, first = last_rows(ran.starts, {one.slot: len(one.nodes) for one in known})
        # laws may be asked for after the next pass
        scores = self.executor.lasting(rows_at(ran.logits, places)[:, : self._vocabulary.size])
        best = Best.of(scores, max(one.width for one in known), self._vocabulary, self.executor)
        answers = best.shared_out(within, first)
        answers = [answer.among(one.nodes) for answer, one in zip(answers, frontiers, strict=True)]
        return Proposed(answers, 1, reading, self.executor.preparations > before)

    def commit(self, committed: Mapping[int, Committed]) -> None:
        self._runner.commit({slot: self._slots[slot].commit(one) for slot, one in committed.items()})
