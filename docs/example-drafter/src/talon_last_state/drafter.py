"""The running side of the head: what it keeps of each sequence, and its passes over draft trees."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from talon_core import Candidates, Committed, Drafter, Frontier, Part, Proposed, Target
from talon_core.runtime import (
    Best,
    KeptRows,
    NetworkTarget,
    Numbers,
    Pass,
    StagedSlot,
    TreeView,
    Vocabulary,
    embedding_shape,
    few_widths,
    last_rows,
    like_output,
    network_target,
    shared_embedding,
    shared_output,
)
from talon_last_state.network import Head, read_head

IntArray = NDArray[np.int64]

SPARE_ROWS = 256
"""Rows of the cache for trees; more are made where a tree is larger."""


def open_last_state(path: Path, target: Target) -> "LastStateDrafter":
    """Read a head; raises as `DrafterSpec.open` does."""
    target = network_target(target, "last-state")
    try:
        head, vocabulary = read_head(path)
    except OSError as error:
        raise ValueError(f"drafter 'last-state' cannot read {path}: {error}") from error
    _, hidden = embedding_shape(target.model)
    if head.sizes["hidden"] != hidden or int(vocabulary.max()) >= target.vocab_size:
        raise ValueError(
            f"the head in {path} is for targets of hidden size {head.sizes['hidden']} with more than "
            f"{int(vocabulary.max())} tokens; this one has {hidden} and {target.vocab_size}: train one with train.py"
        )
    return LastStateDrafter(head, vocabulary, target)


class Slot(StagedSlot):
    """One sequence: the tokens that wait to be run, with the target's state before each.

    Attributes:
        prompt: token ids.
        states: one for each pending token, shape `(pending, hidden)`.
        newest: place of the last of them, while something is staged.
    """

    def __init__(self, prompt: IntArray, none: Tensor) -> None:
        super().__init__([])
        self.prompt = prompt
        self.states = none
        self.newest = 0


class LastStateDrafter(Drafter):
    """Drafts with the head. A row of its cache is a token of the text; the first has none, as no state precedes it.

    Args:
        head: the network.
        vocabulary: the target's ids of the tokens that it scores, shape `(draft vocab,)`, int64.
        target: whose states it reads.
    """

    def __init__(self, head: Head, vocabulary: Tensor, target: NetworkTarget) -> None:
        self.max_depth = head.depth  # older states were not learned
        like = like_output(target.model)
        self._head = head.to(like.device, like.dtype).eval().requires_grad_(False)
        self._embed = shared_embedding(target.model)
        self._output = shared_output(target.model, vocabulary)
        self._faster = target.faster(self._head, self._output)
        self._vocabulary = Vocabulary(target.vocab_size, vocabulary.numpy())
        self._draft_vocab = len(vocabulary)
        self._executor = target.executor()
        self._rows = KeptRows(self._executor)  # the states of this round's pending tokens
        self._none = like.new_empty((0, embedding_shape(target.model)[1]))
        self._slots: dict[int, Slot] = {}

    def describe(self) -> Mapping[str, object]:
        return {**self._head.sizes, "draft_vocab": self._draft_vocab}

    def session(self) -> AbstractContextManager[object]:
        return self._faster

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self._slots[slot] = Slot(prompt, self._none)
        self._executor.cache.open(slot, room + SPARE_ROWS)

    def resume(self, slot: int, prompt: IntArray, room: int, source: int, length: int) -> int:
        # `length` common tokens are `length - 1` rows
        rows = self._executor.cache.resume(slot, room + SPARE_ROWS, source, max(length - 1, 0))
        self._slots[slot] = Slot(prompt, self._none)
        return rows

    def close(self, slot: int) -> None:
        del self._slots[slot]
        self._executor.cache.close(slot)

    @torch.inference_mode()
    def read(self, parts: Mapping[int, Part]) -> None:
        for slot, part in parts.items():
            own = self._slots[slot]
            self._wait(own, own.prompt[part.start + 1 : part.end + 1], part.features)
            last = len(own.pending) - 1  # the first root, if the prompt ends here: what comes after it is asked for
            for start in range(0, last, self._executor.prompt_tokens):
                end = min(last, start + self._executor.prompt_tokens)
                with self._executor.reading([slot], [end - start]) as (positions, this_pass):
                    ids = torch.tensor(own.pending[start:end], device=positions.device)
                    ages = torch.zeros_like(positions)
                    self._forward(ids[None], own.states[None, start:end], ages, positions, this_pass)
            own.restart(own.pending[last:])
            own.states = own.states[last:].clone()  # so that the others can be freed

    def _wait(self, own: Slot, tokens: IntArray, states: Tensor | None) -> None:
        assert states is not None  # they were asked for
        own.pending = [*own.pending, *tokens.tolist()]
        own.states = torch.cat([own.states, states])

    def _forward(self, ids: Tensor, states: Tensor, ages: Tensor, positions: Tensor, this_pass: Pass) -> Tensor:
        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self._executor.cache.update(key, value, 0)
            return this_pass.attend(query, keys, values, query.shape[-1] ** -0.5)

        guessed: Tensor = self._head(self._embed(ids), states, ages, positions, attend)
        return guessed

    @torch.inference_mode()
    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        known = [one for one in frontiers if self._slots[one.slot].pending]
        if not known:  # prompts of one token, of which no state is known yet
            return Proposed([Candidates.unknown(one.nodes) for one in frontiers])
        if all(own.staged is None for own in self._slots.values()):  # a new round
            self._rows.clear()
        staged, places, ages = {}, [], []
        for one in sorted(known, key=lambda one: one.slot):  # passes have the slots in this order
            own = self._slots[one.slot]
            if own.staged is None:  # the root, behind the tokens that were accepted with it
                kept = self._rows.keep(own.states)
                own.newest = int(kept[-1])
                places.append(kept)
                ages.append(np.zeros(len(kept), dtype=np.int64))
            else:
                places.append(np.full(len(one.nodes), own.newest))
                ages.append(one.tree.depths[one.nodes])
            staged[one.slot] = own.stage(one.tree, one.nodes)
        inputs = self._executor.inputs(staged)
        ends, first = last_rows(inputs.layout.starts, {one.slot: len(one.nodes) for one in known})
        width = few_widths(max(one.width for one in known))
        more = {
            "places": Numbers(np.concatenate(places), one_each=True),
            "ages": Numbers(np.concatenate(ages), one_each=True),
            "ends": Numbers(ends),
        }
        before = self._executor.preparations
        found = self._executor.run(inputs, partial(self._drafted, width), width, more)
        best = Best.lasting(self._executor, found, len(ends), self._vocabulary)
        recorded = self._executor.preparations > before  # then its time tells nothing of other passes
        return Proposed(best.shared_out(frontiers, first), draft_passes=1, prepared=recorded)

    def _drafted(self, width: int, view: TreeView) -> tuple[Tensor, Tensor]:
        """One pass: the best tokens behind the frontier's rows, and all scores there."""
        states = self._rows.table.index_select(0, view.more["places"])
        ages, positions = view.more["ages"], view.positions
        hidden = self._forward(view.ids[None], states[None], ages[None], positions[None], view.attention)
        scores = self._output(hidden[0].index_select(0, view.more["ends"])).float()
        return self._executor.best_numbers(scores, width), scores

    @torch.inference_mode()
    def commit(self, committed: Mapping[int, Committed]) -> None:
        paths = {}
        for slot, one in committed.items():
            own = self._slots[slot]
            if own.staged is not None:
                paths[slot] = np.arange(len(own.pending))  # these had true states; a tree's are old
                own.restart([])
                own.states = self._none
            self._wait(own, one.tokens, one.features)
        self._executor.commit(paths)
