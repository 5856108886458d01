"""A target as one part of several sees it: with the hidden states that this part has asked for."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property

import attrs
import torch
from torch import Tensor, nn

from talon_core.runtime.chain_rounds import ChainRounds
from talon_core.runtime.executor import Executor
from talon_core.runtime.network import NetworkTarget
from talon_core.target import ALL_WALKED, NOT_GREEDY, NOTHING_DRAWN, Further, NodeDraws, NodeOutputs, Verified
from talon_core.tree import IntArray, TokenTree


@attrs.frozen
class Columns:
    """Which of the hidden states that a target gives are a part's own.

    Attributes:
        places: of the part's states among the target's, in the part's order; none if it asks for none.
        states: how many the target gives.
    """

    places: tuple[int, ...]
    states: int = 0

    @classmethod
    def of(cls, wanted: Sequence[int], given: Sequence[int]) -> "Columns":
        """For a part that wants some of the states that are given."""
        return cls(tuple(given.index(state) for state in wanted), len(given))

    @property
    def all_of_them(self) -> bool:
        """Whether these are all, in the target's order."""
        return self.places == tuple(range(self.states))

    def features(self, features: Tensor | None) -> Tensor | None:
        """The part's own, shape `(tokens, features)`, of the target's; None if it asks for none."""
        if features is None or not self.places:
            return None
        if self.all_of_them:
            return features
        width = features.shape[-1] // self.states
        own = [features[..., place * width : (place + 1) * width] for place in self.places]
        return own[0] if len(own) == 1 else torch.cat(own, dim=-1)


class PartTarget(NetworkTarget):
    """A target whose features are those of one part; everything else is the target's.

    Args:
        target: it.
        states: what the part has asked for.
        columns: where these are in what the target gives.
    """

    def __init__(self, target: NetworkTarget, states: tuple[int, ...], columns: Columns) -> None:
        self._target = target
        self._columns = columns
        self.states = states
        self.model = target.model
        self.accelerator = target.accelerator
        self.tokenizer = target.tokenizer
        self.vocab_size = target.vocab_size
        self.device = target.device
        self.context_length = target.context_length
        self.context_reason = target.context_reason

    @cached_property
    def occupied(self) -> set[int]:
        return self._target.occupied

    def executor(self) -> Executor:
        return self._target.executor()

    def chained(self, executor: Executor) -> ChainRounds | None:
        return self._target.chained(executor) if self._columns.all_of_them else None

    def own_executor(self) -> Executor:
        return self._target.own_executor()

    def faster(self, *modules: nn.Module) -> AbstractContextManager[object]:
        return self._target.faster(*modules)

    def session(self) -> AbstractContextManager[object]:
        return self._target.session()

    def open(self, slot: int, room: int) -> None:
        self._target.open(slot, room)

    def resume(self, slot: int, room: int, source: int, length: int) -> int:
        return self._target.resume(slot, room, source, length)

    def close(self, slot: int) -> None:
        self._target.close(slot)

    def read(self, parts: Mapping[int, IntArray]) -> Mapping[int, Tensor | None]:
        return {slot: self._columns.features(given) for slot, given in self._target.read(parts).items()}

    def verify(
        self,
        trees: Mapping[int, TokenTree],
        greedy: Mapping[int, frozenset[int]] = NOT_GREEDY,
        unwalked: Mapping[int, int] = ALL_WALKED,
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
        further: Further | None = None,
    ) -> Verified:
        verified = self._target.verify(trees, greedy, unwalked)
        outputs = {
            slot: NodeOutputs(one.logits, self._columns.features(one.features))
            for slot, one in verified.outputs.items()
        }
        accepted = {
            slot: attrs.evolve(one, features=self._columns.features(one.features))
            for slot, one in verified.accepted.items()
        }
        return Verified(outputs, accepted)

    def commit(self, paths: Mapping[int, IntArray]) -> None:
        self._target.commit(paths)
