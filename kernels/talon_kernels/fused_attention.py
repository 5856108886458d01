"""Rotary embedding and the write of keys and values in one launch, in the attention modules of a model on a GPU.

An attention module does both by a dozen small operations. Its replacement is for passes over trees alone, whose rows go
to places that the cache tells; everything else goes to the module's own forward. What the module hands on to TALON's
attention, such as a window or sinks, is noted when it is tried, and no model is known by name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from talon_core.attention import TreeLayout
from talon_core.runtime.cache_keyword import CACHE_KEYWORDS, cache_keyword
from talon_core.runtime.pages import PagedCache
from talon_core.runtime.passes import ATTENTION_NAME, PASS_KEYWORD, TreePass
from talon_kernels.acceleration import agree
from talon_kernels.replacements import Forward, has_tensors, learns, listened_to
from talon_kernels.rotary_write import rotary_write
from talon_kernels.triton_runtime import TYPES

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
NORMS = {"q_proj": "q_norm", "k_proj": "k_norm"}
OUTPUTS = ("o_proj", "dense")
FREQUENCIES = "inv_freq"
"""How the buffers end in which a model keeps the frequencies of its rotary embedding, one for each pair."""

READ = {"position_embeddings", "attention_mask", *CACHE_KEYWORDS, PASS_KEYWORD}
IGNORED = {"position_ids", "cache_position", "use_cache", "output_router_logits"}
"""Keywords that layers hand down to attention, and that nothing reads there: that is tried, too."""

FAR = 10_000_019
"""Positions of a trial are multiples of it: what modules do with them may show in long texts alone."""


@attrs.frozen
class Way:
    """How cos and sin, of some width, turn queries and keys.

    Attributes:
        interleaved: as in `rotary_write`.
        of_pairs: likewise.
        of_half: whether their first half alone is read.
    """

    interleaved: bool = False
    of_pairs: bool = False
    of_half: bool = False

    def read(self, angles: Tensor) -> Tensor:
        """What is read of cos or sin, shape `(1, rows, width)`: `(rows, angles)`."""
        return angles[0, :, : angles.shape[2] // 2] if self.of_half else angles[0]


WAYS = (
    Way(),
    Way(interleaved=True),
    Way(interleaved=True, of_pairs=True, of_half=True),
    Way(of_pairs=True),
)


@attrs.frozen(eq=False)
class _Seen:
    """What an attention module does in a pass over trees.

    Attributes:
        layer: its number in the cache.
        options: what it hands on to the pass, beside queries, keys, values and sinks.
        sinks: which of its parameters are its sinks, if it has any.
        query: what the pass is given, shape `(rows, heads, head_dim)`.
        key: what is in the cache then, shape `(rows, kv_heads, head_dim)`.
        value: likewise, with its own head size.
        out: what the module returns, shape `(rows, hidden)`.
    """

    layer: int
    options: Mapping[str, Any]
    sinks: str | None
    query: Tensor
    key: Tensor
    value: Tensor
    out: Tensor

    def like(self, other: _Seen, error: float) -> bool:
        """Whether another one has the same numbers, up to an error as `agree` has it."""
        pairs = (self.query, other.query), (self.key, other.key), (self.value, other.value), (self.out, other.out)
        return all(agree(own, others, error) for own, others in pairs)


def rotary_widths(model: nn.Module) -> list[int]:
    """How wide the cos and sin of a model may be, likeliest first."""
    counts = {
        len(buffer)
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if name.endswith(FREQUENCIES) and buffer is not None and buffer.dim() == 1
    }
    return [2 * count for count in sorted(counts)] + sorted(counts)


def query_weight(module: nn.Module) -> Tensor | None:
    """The weight that makes queries, if a module has the parts of an attention module, and no other weights."""
    children, weight = module._modules, _weight(module)
    if not set(PROJECTIONS) <= children.keys() or len(children.keys() & set(OUTPUTS)) != 1:
        return None
    if weight is None or weight.dtype not in TYPES or "config" not in module.__dict__:
        return None
    norms = [children[name] for name in NORMS.values() if name in children]
    known = all(norm is not None and norm._parameters.get("weight") is not None for norm in norms)
    return weight if known and not any(map(has_tensors, _unread(module))) else None


def _weight(module: nn.Module) -> Tensor | None:
    """The weight that makes queries, if it is a plain one."""
    child = module._modules.get(PROJECTIONS[0])
    return child._parameters.get("weight") if type(child) is nn.Linear else None


def _unread(module: nn.Module) -> Iterator[nn.Module]:
    """The parts of a module that its replacement does not call."""
    called = {*PROJECTIONS, *NORMS.values(), *OUTPUTS}
    return (child for name, child in module._modules.items() if name not in called and child is not None)


def attention_forward(
    module: nn.Module, probe: Tensor, error: float, widths: Sequence[int], generator: torch.Generator
) -> Forward | None:
    """A forward that does what an attention module does; None if there is none.

    Args:
        module: one that has a `query_weight`.
        probe: hidden states, shape `(1, rows, hidden)`.
        error: as for `agree`.
        widths: that its cos and sin may have.
        generator: draws cos and sin.
    """
    if any(map(listened_to, _unread(module))):
        return None  # now the module's own forward would be tried with itself
    twin = copy(module)  # whose attention is TALON's, while nothing of the model is changed
    twin.__dict__["config"] = config = deepcopy(module.__dict__["config"])
    config._attn_implementation = ATTENTION_NAME
    own = partial(type(module).forward, twin)

    def reproduces(way: Way, cos: Tensor, sin: Tensor, expected: _Seen) -> bool:
        forward = _forward(module, way, cos.shape[2], {cos.dtype}, expected)
        got = _seen(module, forward, probe, cos, sin)
        return got is not None and expected.like(got, error)

    for width in widths:
        turns = 2 * math.pi * torch.rand((1, probe.shape[1], width), generator=generator)
        tried = []
        for of in dict.fromkeys([probe.dtype, torch.float32]):  # they may be left as they were computed
            cos, sin = (one.to(probe.device, of) for one in (turns.cos(), turns.sin()))
            expected = _seen(module, own, probe, cos, sin)
            tried += [(cos, sin, expected)] if expected is not None else []
        for way in WAYS:
            types = {one[0].dtype: one[2] for one in tried if reproduces(way, *one)}
            if types:
                return _forward(module, way, width, types.keys(), next(iter(types.values())))
    return None


class _Cache(PagedCache):
    """Notes which layers asked for their buffers; says that the text is long."""

    layers: tuple[int, ...] = ()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return FAR

    def layer(self, layer_idx: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.layers += (layer_idx,)
        return super().layer(layer_idx, keys, values)


def _seen(module: nn.Module, forward: Forward, probe: Tensor, cos: Tensor, sin: Tensor) -> _Seen | None:
    """What a forward does with hidden states, the module's own or another; None if it fails, or does something else."""
    count = probe.shape[1]
    cache, given = _Cache(), []
    cache.open(0, count)
    cache.make_room_for([count])
    page, rows = cache.pages[0][0], torch.arange(count, device=probe.device)
    cache.stage_at(torch.full_like(rows, page), rows)

    def attend(query: Tensor, key: Tensor, value: Tensor, _: Any, **options: Any) -> Tensor:
        given.append((query.transpose(0, 1), key, value, options))
        numbers = torch.randn((count, len(query), value.shape[3]), generator=torch.Generator().manual_seed(0))
        return numbers.to(query.device, query.dtype).transpose(0, 1)

    read: dict[str, Any] = {"position_embeddings": (cos, sin), "attention_mask": None, cache_keyword(module): cache}
    read[PASS_KEYWORD] = TreePass(TreeLayout.chain(0, count), attend)
    ignored: dict[str, Any] = {"position_ids": FAR * rows[None], "cache_position": FAR * rows}
    ignored |= dict.fromkeys(IGNORED - ignored.keys(), True)
    try:
        out, weights = forward(probe, **read, **ignored)
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError):
        return None
    if weights is not None or len(given) != 1 or len(cache.layers) != 1:
        return None
    ((query, key, value, options),) = given
    sinks = options.pop("sinks")
    of_sinks = next((name for name, one in module._parameters.items() if one is sinks and one is not None), None)
    written = cache.buffers()
    if key is not written[0] or value is not written[1] or (sinks is not None and of_sinks is None):
        return None
    key, value = (one[page, :, :count].transpose(0, 1) for one in written)
    return _Seen(cache.layers[0], options, of_sinks, query, key, value, out[0])


def _forward(module: nn.Module, way: Way, width: int, types: Collection[torch.dtype], seen: _Seen) -> Forward:
    """The forward of a module that turns queries and keys in some way and hands on what was seen.

    Args:
        module: the module.
        way: how they are turned.
        width: of the cos and sin for which it is made; with others the module's own forward is called.
        types: likewise, those that they may have.
        seen: what the module does.
    """
    own, children, parameters = type(module).forward, module._modules, module._parameters
    config, keyword = module.__dict__["config"], cache_keyword(module)
    output = next(name for name in OUTPUTS if name in children)
    heads = [tuple(one.shape[1:]) for one in (seen.query, seen.key, seen.value)]

    def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        angles = _angles(kwargs.get("position_embeddings"), hidden_states, width, types)
        places = _places(module, keyword, hidden_states, kwargs)
        if args or angles is None or places is None or module.__dict__["config"] is not config:
            return own(module, hidden_states, *args, **kwargs)
        projected = [_projected(module, name, hidden_states, *of) for name, of in zip(PROJECTIONS, heads, strict=True)]
        query, key, value = projected
        cache, this_pass = kwargs[keyword], kwargs[PASS_KEYWORD]
        keys, values = cache.layer(seen.layer, key.transpose(0, 1)[None], value.transpose(0, 1)[None])
        cos, sin = map(way.read, angles)
        query = rotary_write(
            *(query, key, value, cos, sin, keys, values, *places),
            interleaved=way.interleaved,
            of_pairs=way.of_pairs,
            backend="triton",
        )
        sinks = parameters[seen.sinks] if seen.sinks is not None else None
        attended = this_pass.attend(query.transpose(0, 1)[None], keys, values, sinks=sinks, **seen.options)
        return getattr(module, output)(attended.transpose(1, 2).flatten(2)), None

    return forward


def _projected(module: nn.Module, name: str, x: Tensor, heads: int, size: int) -> Tensor:
    """Queries, keys or values, after their norm where there is one, shape `(rows, heads, size)`."""
    out: Tensor = getattr(module, name)(x)
    norm = module._modules.get(NORMS.get(name, ""))
    if norm is not None:
        weight: Any = norm.weight
        out = norm(out.reshape(x.shape[1], -1, weight.shape[-1]))  # of each head, or of all heads together
    return out.reshape(-1, heads, size)


def _angles(given: Any, x: Tensor, width: int, types: Collection[torch.dtype]) -> tuple[Tensor, Tensor] | None:
    """The cos and sin of a pass, if they are as they were when the module was tried."""
    if not isinstance(given, tuple) or len(given) != 2 or not all(type(one) is Tensor for one in given):
        return None
    wanted = (1, x.shape[-2], width), x.device
    alike = given[0].dtype == given[1].dtype and given[0].dtype in types
    return given if alike and all((tuple(one.shape), one.device) == wanted for one in given) else None


def _places(module: nn.Module, keyword: str, x: Tensor, given: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Where the rows of a pass go; None if it is not a pass over trees, or there is something unusual about it."""
    cache, weight = given.get(keyword), _weight(module)
    if not isinstance(cache, PagedCache) or not isinstance(given.get(PASS_KEYWORD), TreePass) or weight is None:
        return None
    if given.get("attention_mask") is not None or not given.keys() <= READ | IGNORED or learns(module, x):
        return None
    if type(x) is not Tensor or (x.dtype, x.device) != (weight.dtype, weight.device) or x.shape[:-2] != (1,):
        return None
    if any(map(listened_to, _unread(module))):
        return None
    places = cache.places(x.device)
    return places if places is not None and len(places[0]) == x.shape[1] else None
