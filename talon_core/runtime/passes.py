"""One forward pass through all attention layers: over the trees of a batch, or over prompts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from talon_core.attention import AttentionBackend, DeviceBackend, PackedLayout, TreeLayout
from talon_core.runtime.cache import KeyValueCache
from talon_core.runtime.causal import MOST_BYTES, causal_attention

ATTENTION_NAME = "talon"
"""The name of our attention in transformers' `AttentionInterface`."""

PASS_KEYWORD = "talon_pass"
"""The keyword of `model(...)` that carries the `Pass` to every attention layer."""

_running: ContextVar[tuple[Pass, KeyValueCache] | None] = ContextVar("running", default=None)

CHEAP = 4
"""Plain causal attention needs as many queries as keys. Queries for tokens that are cached already cost less than a
mask does, if there are so many times as many others."""


class Pass(ABC):
    """One forward pass through all attention layers, each of which calls `attend`.

    Attributes:
        windows: the sliding window that each layer asked for, in the order of the calls.
    """

    def __init__(self) -> None:
        self.windows: list[int | None] = []

    @contextmanager
    def running(self, cache: KeyValueCache) -> Iterator[dict[str, Pass]]:
        """Called inside, models find this pass, also those whose layers do not hand keywords on to their attention.

        Args:
            cache: that the model is given.

        Yields:
            The keyword to call the model with.
        """
        before = _running.set((self, cache))
        try:
            yield {PASS_KEYWORD: self}
        finally:
            _running.reset(before)

    @staticmethod
    def found(keywords: Mapping[str, Any], key: Tensor) -> Pass | None:
        """The pass that an attention layer is part of; None if there is none.

        Args:
            keywords: those that reached the layer.
            key: its keys. Without the keyword they are of the pass that runs if its cache gave them: a hook may call
                the model in between.
        """
        given: Pass | None = keywords.get(PASS_KEYWORD)
        if given is not None:
            return given
        running = _running.get()
        return running[0] if running is not None and running[1].gave(key) else None

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        softcap: float | None = None,
        window: int | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention for one layer.

        Args:
            query: shape `(rows, heads, queries, head_dim)`, as the model has it.
            key: what the cache's `update` gave for this layer, which each layer calls in each pass, with the keys and
                values that it made. Shape `(sequences, kv_heads, capacity, head_dim)`, or of pages.
            value: likewise.
            scale: as in `AttentionBackend.attend`, and so are the others.

        Returns:
            The query's shape, but for the values' head size.
        """
        self.windows.append(window)
        return self._attend(query, key, value, scale=scale, softcap=softcap, window=window, sinks=sinks)

    @abstractmethod
    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """What `attend` returns; the options are those of `AttentionBackend.attend`, all of them."""


class TreePass(Pass):
    """A pass over the trees of a batch: one row of the model's, in which all trees' nodes stand one after another.

    Args:
        layout: who may attend to whom.
        compute: a backend's `attend`, or for a layout in device memory its `attend_packed`.
    """

    def __init__(self, layout: TreeLayout | PackedLayout, compute: Callable[..., Tensor]) -> None:
        super().__init__()
        self._layout = layout
        self._compute = compute

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return self._compute(query[0], key, value, self._layout, **options)[None]


class PromptPass(Pass):
    """A pass over prompts, one a row, from the same position on: plain causal attention.

    On a CPU it is the backend's, if that is faster (`AttentionBackend.reads_prompts`), or PyTorch's, with a mask
    where tokens are cached already; elsewhere it is `causal_attention`.

    Args:
        start: tokens of each that are in the cache already.
        count: tokens of each in the pass; shorter ones are padded at the end.
        backend: computes each row as a chain, where it is faster so, and what plain attention cannot.
    """

    def __init__(self, start: int, count: int, backend: AttentionBackend) -> None:
        super().__init__()
        self._start = start
        self._count = count
        self._chains: dict[int, list[TreeLayout]] = {}  # by the most queries of each
        self._masks: dict[tuple[int | None, torch.device], Tensor] = {}
        self._backend = backend

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        host = query.device.type == "cpu"
        if options["softcap"] is not None or options["sinks"] is not None or (host and self._backend.reads_prompts):
            rows = zip(query, key, value, strict=True)
            return torch.stack([self._as_chain(*row, options) for row in rows])
        scale, end, window = options["scale"], key.shape[2], options["window"]
        if not host:
            return causal_attention(query, key, value, scale=scale, window=window)
        every = window is None or window >= end  # that came before is seen
        unread = 0
        if every and 0 < CHEAP * self._start <= self._count:
            unread = self._start
            query = F.pad(query, (0, 0, unread, 0))
        mask = None if every and unread == self._start else self._mask(end, window, query.device)
        grouped = key.shape[1] != query.shape[1]
        causal = mask is None and query.shape[2] > 1
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
        )
        return out[:, :, unread:]

    def _as_chain(self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        """One row; on a device in parts, unless the backend keeps scores to itself."""
        most = self._count
        if query.device.type != "cpu" and not isinstance(self._backend, DeviceBackend):
            of_query = query.shape[0] * (self._start + self._count) * max(query.element_size(), 4)
            most = max(1, MOST_BYTES // of_query)
        parts = torch.split(query, most, dim=1)
        found = [
            self._backend.attend(part, key[None], value[None], chain, **options)
            for part, chain in zip(parts, self._layouts(most), strict=True)
        ]
        return found[0] if len(found) == 1 else torch.cat(found, dim=1)

    def _layouts(self, most: int) -> list[TreeLayout]:
        """The row's tokens as a chain, so many queries in each layout; made once for all layers."""
        if most not in self._chains:
            firsts = range(0, self._count, most)
            self._chains[most] = [
                TreeLayout.chain(self._start, min(first + most, self._count), first) for first in firsts
            ]
        return self._chains[most]

    def _mask(self, end: int, window: int | None, device: torch.device) -> Tensor:
        """Which of the positions up to `end` each query sees, made once for all layers of a device."""
        at = window, device
        if at not in self._masks:
            behind = torch.arange(self._start, end, device=device)[:, None] - torch.arange(end, device=device)
            self._masks[at] = (behind >= 0) if window is None else (behind >= 0) & (behind < window)
        return self._masks[at]
