"""The running side of `conflayers`: passes of some of the target's layers, over the target's own keys and values."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from talon_core.candidates import Candidates
from talon_core.drafter import Committed, Drafter, Frontier, Proposed
from talon_core.runtime.best import Best, Vocabulary, last_rows, rows_at
from talon_core.runtime.cache_keyword import cache_keyword
from talon_core.runtime.executor import Executor, TreeView
from talon_core.runtime.fewer_layers import without_layers
from talon_core.runtime.modules import Modules
from talon_core.runtime.network import NetworkTarget, network_target
from talon_core.runtime.open_slots import OpenSlots
from talon_core.runtime.passes import Pass
from talon_core.runtime.staging import StagedSlot
from talon_core.runtime.states import decoder_layers
from talon_core.target import Target
from talon_core.tree import IntArray
from talon_drafters.conflayers.confidence import Confidence
from talon_drafters.conflayers.selection import every_second, skipped

if TYPE_CHECKING:
    from talon_drafters.conflayers.options import ConfLayers

Skip = tuple[int, ...]
"""Layers that are left out, counted from 0."""

MOST_MODELS = 32
"""So many choices of layers are kept ready to run."""


def open_conflayers(options: "ConfLayers", target: Target) -> "ConfLayersDrafter":
    """The drafter with these options; raises as `DrafterSpec.open` does."""
    return ConfLayersDrafter(options, network_target(target, options.name))


class _Slot(StagedSlot):
    """One sequence.

    Args:
        text: its tokens.

    Attributes:
        text: likewise.
        chosen_at: how many of them there were when its layers were chosen; None while they are not.
        skip: the layers that are left out.
    """

    def __init__(self, text: list[int]) -> None:
        super().__init__(text[-1:])
        self.text = text
        self.chosen_at: int | None = None
        self.skip: Skip = ()


class ConfLayersDrafter(Drafter):
    """Runs the target without some layers; which ones is chosen for each text.

    A pass stages its rows behind the committed ones in the target's own cache. They are given up when it is over, as
    the target may be asked to verify next, and counted again when the next layer of the tree is drafted: nobody writes
    in between.

    Args:
        options: how the layers are chosen.
        target: whose layers.

    Attributes:
        executor: runs the passes; its `failure` says why they are not recorded.
    """

    uses_target = drafts_in_cache = True

    def __init__(self, options: "ConfLayers", target: NetworkTarget) -> None:
        self._options = options
        self._model = target.model
        self._cache_keyword = cache_keyword(target.model)
        self._confidence = Confidence(decoder_layers(target.model), target.model)
        self._modules = Modules(target.model)
        self.executor = target.own_executor()
        self._recent = target.executor()  # for passes over recent tokens alone
        self._vocabulary = Vocabulary(target.vocab_size)
        self._models: dict[Skip, Any] = {}
        self._passes = 0  # that the target's cache had seen after the last one of ours
        self._slots = OpenSlots[_Slot]()
        self._drafting: dict[int, _Slot] = {}  # those that have taken part in this round

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self._slots[slot] = _Slot(prompt.tolist())

    def close(self, slot: int) -> None:
        del self._slots[slot]

    def commit(self, committed: Mapping[int, Committed]) -> None:
        for slot, one in committed.items():
            own = self._slots[slot]
            own.text += one.tokens.tolist()
            own.restart(own.text[-1:])

    @torch.inference_mode()
    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        self._look()
        before = self.executor.preparations
        passes = sum(self._choose(self._slots[one.slot]) for one in frontiers)
        alike: dict[Skip, list[int]] = {}
        for place, one in enumerate(frontiers):
            alike.setdefault(self._slots[one.slot].skip, []).append(place)
        cache = self.executor.cache
        if any(0 in one.nodes for one in frontiers):  # a new round: all of them begin with their roots
            self._drafting.clear()
        staged = {slot: len(own.staged) for slot, own in self._drafting.items() if own.staged is not None}
        self._drafting |= {one.slot: self._slots[one.slot] for one in frontiers}
        answers: dict[int, Candidates] = {}
        cache.restage(staged, self._passes)
        try:
            for skip, places in alike.items():
                own = self._drafted(skip, [frontiers[place] for place in places])
                answers |= zip(places, own, strict=True)
        finally:
            cache.committed(dict.fromkeys(self._drafting, 0))
            self._passes = cache.passes
        found = [answers[place] for place in range(len(frontiers))]
        return Proposed(found, passes + len(alike), prepared=self.executor.preparations > before)

    def _drafted(self, skip: Skip, frontiers: Sequence[Frontier]) -> list[Candidates]:
        """One pass without these layers."""
        inputs = self.executor.inputs({one.slot: self._slots[one.slot].stage(one.tree, one.nodes) for one in frontiers})
        work = partial(self._at_nodes, self._without(skip))
        logits = self.executor.run(inputs, work, ("conflayers", skip))
        places, first = last_rows(inputs.layout.starts, {one.slot: len(one.nodes) for one in frontiers})
        # laws may be asked for after the next pass
        scores = self.executor.lasting(rows_at(logits, places)[:, : self._vocabulary.size])
        best = Best.of(scores, max(one.width for one in frontiers), self._vocabulary, self.executor)
        return best.shared_out(frontiers, first)

    def _at_nodes(self, model: Any, view: TreeView) -> Tensor:
        """A pass over trees: logits at the nodes, shape `(queries, vocab)`."""
        return self._forward(model, self.executor, view.ids[None], view.positions[None], view.attention)

    def _forward(self, model: Any, executor: Executor, ids: Tensor, positions: Tensor, this_pass: Pass) -> Tensor:
        with this_pass.running(executor.cache) as keyword:
            logits: Tensor = model(
                input_ids=ids,
                position_ids=positions,
                use_cache=True,
                **{self._cache_keyword: executor.cache, **keyword},
            ).logits
        return logits[0]

    def _look(self) -> None:
        """Notice where parts of the model were exchanged."""
        if not self._modules.are_those_of_the_model():
            self._modules = Modules(self._model)
            self._confidence = Confidence(decoder_layers(self._model), self._model)
            self._models.clear()

    def _without(self, skip: Skip) -> Any:
        """The model without these layers."""
        if skip not in self._models:
            if len(self._models) >= MOST_MODELS:
                self._models.clear()
                self.executor.forget()  # what was recorded of them
            self._models[skip] = without_layers(self._model, skip)
        return self._models[skip]

    # Which layers

    def _choose(self, own: _Slot) -> int:
        """Choose the layers where the text is at another multiple of `every`; returns the passes that it took."""
        place = len(own.text) // self._options.every * self._options.every
        if place == own.chosen_at:
            return 0
        own.chosen_at = place
        second = every_second(len(decoder_layers(self._model)))
        if place < self._options.context:
            own.skip = second
            return 0
        recent = own.text[place - self._options.context : place]
        with self._confidence.measured() as scores:
            truth = self._best(self._model, recent)
        places = skipped(scores, self._options.least, self._options.most)
        found = tuple(layer + 1 for layer in places)  # the first has no score
        if not found or found == second:
            own.skip = second
            return 1
        matches = [(self._best(self._without(skip), recent) == truth).sum() for skip in (found, second)]
        of_found, of_second = torch.stack(matches).cpu().tolist()
        own.skip = found if of_found > of_second else second
        return 3

    def _best(self, model: Any, tokens: Sequence[int]) -> Tensor:
        """The most likely token after each of some tokens, which are read as a text of their own."""
        recent = self._recent
        recent.cache.open(0, len(tokens))
        with recent.reading([0], [len(tokens)]) as (positions, this_pass):
            ids = torch.tensor([tokens], device=positions.device)
            best = self._forward(model, recent, ids, positions, this_pass).argmax(-1)
        recent.cache.close(0)
        return best
