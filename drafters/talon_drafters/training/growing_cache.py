"""A key-value cache for writing many texts at once, without copying all of it at every token."""

from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class _GrowingLayer(DynamicLayer):  # type: ignore[misc]  # transformers has no complete types
    """A `DynamicLayer` with room behind its last token; `keys` and `values` are views of the part in use."""

    _room: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self._room is None or self._room[0].shape[-2] < end:
            before, self._room = self._room, (_room_for(key_states, end), _room_for(value_states, end))
            if before is not None:
                for new, old in zip(self._room, before, strict=True):
                    new[..., :start, :] = old[..., :start, :]
        self._room[0][..., start:end, :] = key_states
        self._room[1][..., start:end, :] = value_states
        self.keys, self.values = self._room[0][..., :end, :], self._room[1][..., :end, :]
        return self.keys, self.values


def _room_for(states: Tensor, tokens: int) -> Tensor:
    return states.new_empty((*states.shape[:-2], tokens + max(tokens // 2, 64), states.shape[-1]))


def growing_cache(model: Any) -> Any:
    """An empty cache for `model.generate`; layers of other kinds (sliding windows, recurrent states) are as they are.

    Returns:
        A `DynamicCache`, or None where its layers are made only as the model runs.
    """
    cache = DynamicCache(config=model.config)
    if not cache.layers:
        return None
    cache.layers = [_GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
