"""Tree attention in Triton, as a device sees it: packed layouts, low precision, shares of any number.

The law of float32 over random layouts is in `test_tree_attention.py`, for all backends.
"""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from talon_core.attention import PackedShape, TreeLayout

NAN = float("nan")
SLOW = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]}
SEVEN = [-1, 0, 0, 1, 1, 2, 3]


def layout_of(prefixes, trees, first=None):
    first = np.zeros(len(trees), dtype=np.int64) if first is None else np.array(first)
    return TreeLayout(np.array(prefixes), tuple(np.array(tree, dtype=np.int64) for tree in trees), first)


def chains(*lengths):
    return [list(range(-1, length - 1)) for length in lengths]


def truth(query, key, value, layout, scale, softcap=None, window=None, sinks=None):
    """The definition, query by query, in float64: written without any of the kernels' parts."""
    out = torch.zeros(query.shape[0], query.shape[1], value.shape[3], dtype=torch.float64)
    group = query.shape[0] // key.shape[1]
    for row, parents in enumerate(layout.parents):
        prefix = int(layout.prefix_lengths[row])
        for place, node in enumerate(
            range(int(layout.first_queries[row]), len(parents)), start=int(layout.starts[row])
        ):
            path = [node]
            while parents[path[-1]] >= 0:
                path.append(int(parents[path[-1]]))
            rows = [*range(prefix), *(prefix + node for node in reversed(path))]
            if window is not None:
                rows = rows[-window:]  # they are in the order of their positions
            for head in range(query.shape[0]):
                keys, values = key[row, head // group, rows].double(), value[row, head // group, rows].double()
                score = keys @ query[head, place].double() * scale
                if softcap is not None:
                    score = softcap * torch.tanh(score / softcap)
                weight = (score - score.max()).exp()
                total = weight.sum()
                if sinks is not None:
                    total += (sinks[head].double() - score.max()).exp()
                out[head, place] = weight @ values / total
    return out


def tensors(layout, heads, kv_heads, dim, dtype, seed=0, value_dim=None, size=1.0, spare=3):
    """Query, key and value; what may not be read is NaN."""
    random = torch.Generator().manual_seed(seed)
    batch = len(layout.parents)
    capacity = int((layout.prefix_lengths + layout.nodes).max()) + spare
    query = (size * torch.randn(layout.queries, heads, dim, generator=random)).to(dtype).transpose(0, 1)
    key = torch.randn(batch, kv_heads, capacity, dim, generator=random).to(dtype)
    value = torch.randn(batch, kv_heads, capacity, value_dim or dim, generator=random).to(dtype)
    for row, end in enumerate((layout.prefix_lengths + layout.nodes).tolist()):
        key[row, :, end:] = value[row, :, end:] = NAN
    return query, key, value


def attend(device, query, key, value, packed, **options):
    from talon_kernels.tree_attention.triton import tree_attention_triton

    sinks = options.pop("sinks", None)
    there = [tensor.to(device) for tensor in (query, key, value)]
    out = tree_attention_triton(*there, packed, sinks=None if sinks is None else sinks.to(device), **options)
    return out.cpu()


def check(got, expected, query, key, value, layout, **options):
    """Twice the error of the same definition rounded to the type at its end, its weights and its inputs' products.

    A weight is rounded to the type before it meets the values; what is added up is as large as the values.
    """
    assert got.dtype == query.dtype
    step = torch.finfo(query.dtype).eps
    score = (options["scale"] * query.double().norm(dim=-1).max() * key.nan_to_num().double().norm(dim=-1).max()).item()
    rounding = step + (1 + score) * torch.finfo(torch.float32).eps
    allowed = 2 * rounding * value.nan_to_num().double().abs().max().item()
    assert (got.double() - expected).abs().max().item() <= allowed


@st.composite
def cases(draw):
    batch = draw(st.integers(1, 4))
    trees = []
    for _ in range(batch):
        nodes = draw(st.sampled_from([0, 1, 2, 7, 33, 70]))
        trees.append([-1, *(draw(st.integers(0, node - 1)) for node in range(1, nodes))][:nodes])
    if not any(trees):
        trees[0] = [-1]
    kv_heads = draw(st.integers(1, 2))
    dim = draw(st.sampled_from([1, 16, 40, 64, 80, 96, 128, 256]))
    return {
        "layout": layout_of(
            [draw(st.sampled_from([0, 1, 63, 64, 100, 300])) for _ in trees],
            trees,
            [draw(st.integers(0, max(len(tree) - 1, 0))) for tree in trees],
        ),
        "heads": kv_heads * draw(st.integers(1, 5)),
        "kv_heads": kv_heads,
        "dim": dim,
        "value_dim": draw(st.sampled_from([dim, dim, 24, 128])),
        "dtype": draw(st.sampled_from([torch.bfloat16, torch.float16, torch.float32])),
        "window": draw(st.sampled_from([None, 1, 3, 40, 128])),
        "softcap": draw(st.sampled_from([None, 20.0])),
        "sinks": draw(st.booleans()),
        "programs": draw(st.integers(1, 12)),
        "room": draw(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 5))),
    }


@settings(max_examples=12, **SLOW)
@given(case=cases())
def test_any_layout_in_any_type_in_memory_that_is_larger(device, case):
    layout, kv_heads = case["layout"], case["kv_heads"]
    query, key, value = tensors(
        layout, case["heads"], kv_heads, case["dim"], case["dtype"], value_dim=case["value_dim"]
    )
    options = {"scale": case["dim"] ** -0.5, "window": case["window"], "softcap": case["softcap"]}
    sinks = torch.linspace(-1, 2, case["heads"]) if case["sinks"] else None
    expected = truth(query, key, value, layout, sinks=sinks, **options)
    rows, nodes, queries = case["room"]
    shape = PackedShape(
        len(layout.parents) + rows, max(layout.shape.nodes, 1) + nodes, max(layout.queries + queries, 1)
    )
    numbers = torch.full((shape.size,), 2**30, dtype=torch.int32)  # what is behind the layout's own means nothing
    shape.write(layout, numbers.numpy())
    padded = torch.cat([query, torch.full((case["heads"], shape.queries - layout.queries, case["dim"]), NAN)], dim=1)
    more = torch.full((rows, *key.shape[1:]), NAN, dtype=key.dtype)
    more_values = torch.full((rows, *value.shape[1:]), NAN, dtype=key.dtype)
    got = attend(
        device,
        padded.to(case["dtype"]),
        torch.cat([key, more]),
        torch.cat([value, more_values]),
        shape.views(numbers.to(device)),
        sinks=None if sinks is None else sinks.to(case["dtype"]),
        programs=case["programs"],
        **options,
    )
    if sinks is not None:
        expected = truth(query, key, value, layout, sinks=sinks.to(case["dtype"]), **options)
    check(got[:, : layout.queries], expected, query, key, value, layout, **options)
    assert (got[:, layout.queries :] == 0).all()


@pytest.mark.parametrize(
    ("prefixes", "trees"),
    [
        pytest.param([0], [[-1]], id="nothing before a single node"),
        pytest.param([5], chains(100), id="the deepest chain"),
        pytest.param([5], [[-1, *[0] * 99]], id="the widest tree"),
        pytest.param([1000, 3], [SEVEN, SEVEN], id="a long text beside a short one"),
        pytest.param([0, 0, 64], [[], SEVEN, []], id="sequences that are over"),
    ],
)
@pytest.mark.parametrize("programs", [1, 7])
def test_extremes(device, prefixes, trees, programs):
    layout = layout_of(prefixes, trees)
    query, key, value = tensors(layout, 4, 2, 16, torch.float32)
    got = attend(device, query, key, value, layout.packed(device), scale=0.25, programs=programs)
    check(got, truth(query, key, value, layout, 0.25), query, key, value, layout, scale=0.25)


@pytest.mark.parametrize("softcap", [None, 30.0])
def test_large_scores_stay_finite_and_right(device, softcap):
    layout = layout_of([130], [SEVEN])
    query, key, value = tensors(layout, 2, 1, 64, torch.float32, size=1e4)
    got = attend(device, query, key, value, layout.packed(device), scale=1.0, softcap=softcap, programs=5)
    assert got.isfinite().all()
    check(got, truth(query, key, value, layout, 1.0, softcap), query, key, value, layout, scale=1.0)


def test_memory_that_is_written_anew_gives_the_new_answer(device):
    """What the replay of a captured graph relies on."""
    shape = PackedShape(2, 40, 24)
    numbers = torch.zeros(shape.size, dtype=torch.int32)
    there = numbers.to(device)
    packed = shape.views(there)
    for prefixes, trees in (([9, 90], [SEVEN, [-1]]), ([0, 3], [[-1], chains(12)[0]]), ([70, 1], [[], SEVEN])):
        layout = layout_of(prefixes, trees)
        shape.write(layout, numbers.numpy())
        there.copy_(numbers)
        query, key, value = tensors(layout, 4, 2, 32, torch.float32, spare=0)
        expected = truth(query, key, value, layout, 0.2)
        room = 120 - key.shape[2]
        key, value = (torch.nn.functional.pad(tensor, (0, 0, 0, room), value=NAN) for tensor in (key, value))
        padded = torch.nn.functional.pad(query, (0, 0, 0, 24 - query.shape[1]), value=NAN)
        got = attend(device, padded, key, value, packed, scale=0.2)
        check(got[:, : layout.queries], expected, query, key, value, layout, scale=0.2)
