"""Tree attention: who sees whom, right to float32, and bit for bit what plain decoding gives."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from talon_core.attention import TreeLayout
from talon_kernels import native
from talon_kernels.native import load, switch_off
from talon_kernels.tree_attention import tree_attention
from talon_kernels.tree_attention.layout import visible
from talon_kernels.tree_attention.reference import tree_attention_reference

NAN = float("nan")

#        0
#      /   \
#     1     2
#    / \     \
#   3   4     5
#   |
#   6
SEVEN = [-1, 0, 0, 1, 1, 2, 3]
SEVEN_SEES = """
    1 . . . . . .
    1 1 . . . . .
    1 . 1 . . . .
    1 1 . 1 . . .
    1 1 . . 1 . .
    1 . 1 . . 1 .
    1 1 . 1 . . 1
"""


def layout_of(prefixes, trees, first=None):
    return TreeLayout(
        np.array(prefixes, dtype=np.int64),
        tuple(np.array(tree, dtype=np.int64) for tree in trees),
        np.array(first if first is not None else [0] * len(trees), dtype=np.int64),
    )


def buffers(layout, heads, kv_heads, head_dim, seed=0, spare=3, value_dim=None):
    """Query, key and value for a layout; what may not be read is NaN, and strides are those of a slice."""
    random = torch.Generator().manual_seed(seed)
    batch = len(layout.parents)
    capacity = max(int(p) + len(t) for p, t in zip(layout.prefix_lengths, layout.parents, strict=True)) + spare
    query = torch.randn(layout.queries, heads, head_dim, generator=random).transpose(0, 1)
    both = torch.randn(2, 2 * batch, kv_heads + 1, capacity, max(head_dim, value_dim or 0), generator=random)
    key, value = both[0, ::2, 1:, :, :head_dim], both[1, ::2, 1:, :, : value_dim or head_dim]
    for row, (prefix, tree) in enumerate(zip(layout.prefix_lengths, layout.parents, strict=True)):
        key[row, :, int(prefix) + len(tree) :] = NAN
        value[row, :, int(prefix) + len(tree) :] = NAN
    return query, key, value


def double(tensor):
    return None if tensor is None else tensor.double()


@st.composite
def trees(draw, most=20):
    """Parents of a tree; half of the time with a chain at its start, now and then several roots."""
    nodes = draw(st.integers(1, most))
    parents = [-1]
    for node in range(1, nodes):
        parents.append(draw(st.one_of(st.just(node - 1), st.integers(-1 if draw(st.booleans()) else 0, node - 1))))
    return parents


@st.composite
def cases(draw):
    batch = draw(st.integers(1, 3))
    grown = [draw(trees()) for _ in range(batch)]
    if batch > 1 and draw(st.booleans()):
        grown[draw(st.integers(0, batch - 1))] = []  # a sequence that has no part in the pass
    prefixes = [draw(st.sampled_from([0, 1, 7, 63, 100, 120, 127, 128, 130, 250])) for _ in range(batch)]
    first = [draw(st.integers(0, max(len(tree) - 1, 0))) for tree in grown]
    kv_heads = draw(st.integers(1, 3))
    return {
        "layout": layout_of(prefixes, grown, first),
        "heads": kv_heads * draw(st.integers(1, 5)),
        "kv_heads": kv_heads,
        "head_dim": draw(st.sampled_from([1, 7, 16, 17, 63, 64, 80, 96, 100, 128, 256])),
        "value_dim": draw(st.sampled_from([None, None, 1, 7, 16, 100, 128])),
        "window": draw(st.sampled_from([None, 1, 2, 5, 64, 200])),
        "softcap": draw(st.sampled_from([None, 5.0, 50.0])),
        "sinks": draw(st.booleans()),
        "seed": draw(st.integers(0, 5)),
    }


def test_who_sees_whom_in_the_tree_of_seven():
    expected = np.array([[mark == "1" for mark in line.split()] for line in SEVEN_SEES.split("\n") if line.strip()])
    layout = layout_of([2], [SEVEN])
    assert (visible(layout, 0, None)[:, 2:] == expected).all()
    assert visible(layout, 0, None)[:, :2].all()
    # Positions are 2 for the root, then 3, 3, 4, 4, 4 and 5: a window of 3 hides position 0 from the root's children.
    windowed = visible(layout, 0, 3)
    assert windowed[:, 0].tolist() == [True, False, False, False, False, False, False]
    assert windowed[:, 1].tolist() == [True, True, True, False, False, False, False]
    assert windowed[6, 2:].tolist() == [False, True, False, True, False, False, True]


def run(case, backend, device="cpu"):
    layout = case["layout"]
    query, key, value = buffers(
        layout, case["heads"], case["kv_heads"], case["head_dim"], case["seed"], value_dim=case.get("value_dim")
    )
    sinks = torch.linspace(-1, 2, case["heads"]) if case["sinks"] else None
    options = {"scale": 1.7 * case["head_dim"] ** -0.5, "window": case["window"], "softcap": case["softcap"]}
    there = [None if tensor is None else tensor.to(device) for tensor in (query, key, value, sinks)]
    got = tree_attention(*there[:3], layout, sinks=there[3], backend=backend, **options).cpu()
    low = tree_attention_reference(query, key, value, layout, sinks=sinks, **options)
    truth = tree_attention_reference(
        query.double(), key.double(), value.double(), layout, sinks=double(sinks), **options
    )
    # A score is rounded relative to its own size, and this absolute error is the weight's relative error.
    folded = query.double().reshape(case["kv_heads"], -1, case["head_dim"])
    score = options["scale"] * (folded @ key.nan_to_num().double().transpose(2, 3)).abs().max()
    return got, low, truth, (1 + score) * value.nan_to_num().double()


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_native_has_the_error_of_float32(library, check_error, case):
    check_error(*run(case, "native"))


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_sdpa_has_the_error_of_float32(check_error, case):
    check_error(*run({**case, "softcap": None, "sinks": False}, "sdpa"))


@pytest.mark.slow
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_triton_has_the_error_of_float32(device, check_error, case):
    check_error(*run(case, "triton", device))


def test_native_is_right_over_several_parts_of_a_long_prefix(library, check_error):
    for prefix in (250, 256, 1020, 1024, 2500):
        for window in (None, 70, 1500):
            case = {"layout": layout_of([prefix, 3], [SEVEN, SEVEN]), "heads": 6, "kv_heads": 2, "head_dim": 64}
            check_error(*run({**case, "window": window, "softcap": None, "sinks": prefix == 1024, "seed": 1}, "native"))


def test_a_prompt_is_a_chain(library, check_error):
    chain = list(range(-1, 299))
    case = {"layout": layout_of([100], [chain]), "heads": 4, "kv_heads": 2, "head_dim": 64, "window": 150}
    check_error(*run({**case, "softcap": 30.0, "sinks": True, "seed": 1}, "native"))


def path_to(parents, node):
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    parents=trees(),
    prefix=st.sampled_from([0, 1, 100, 120, 126, 127, 128, 250, 255, 1015, 1023]),
    head_dim=st.sampled_from([16, 64, 80, 100]),
    value_dim=st.sampled_from([None, 7, 64, 128]),
    group=st.integers(1, 4),
    window=st.sampled_from([None, 3, 100, 130]),
    softcap=st.sampled_from([None, 20.0]),
    sunk=st.booleans(),
)
def test_a_node_has_the_bits_of_plain_decoding(
    library, parents, prefix, head_dim, value_dim, group, window, softcap, sunk
):
    layout = layout_of([prefix], [parents])
    query, key, value = buffers(layout, 2 * group, 2, head_dim, value_dim=value_dim)
    options = {"scale": 0.3, "window": window, "softcap": softcap, "backend": "native"}
    if sunk:
        options["sinks"] = torch.linspace(-1, 2, 2 * group)
    together = tree_attention(query, key, value, layout, **options)
    for node in range(len(parents)):
        path = path_to(parents, node)
        rows = [*range(prefix), *(prefix + step for step in path)]  # the cache after decoding the path, token by token
        alone = tree_attention(
            query[:, node : node + 1],
            key[:, :, rows].contiguous(),
            value[:, :, rows].contiguous(),
            layout_of([prefix + len(path) - 1], [[-1]]),
            **options,
        )
        assert torch.equal(together[:, node : node + 1], alone)


@pytest.mark.parametrize(
    ("prefixes", "window"),
    [([1500, 7, 100], None), ([1500, 1280, 1100], 300), ([1500, 1280, 1100], 3), ([255, 256, 257], None)],
)
def test_neither_threads_nor_neighbours_change_bits(library, threads, prefixes, window):
    grown = [SEVEN, list(range(-1, 62)), [-1]]
    layout = layout_of(prefixes, grown, [0, 3, 0])
    query, key, value = buffers(layout, 9, 3, 64)
    options = {"scale": 0.125, "window": window, "backend": "native"}
    results = []
    for count in (1, 2, 3, 5, 16, 64):
        threads(count)
        results.append(tree_attention(query, key, value, layout, **options))
    assert all(torch.equal(result, results[0]) for result in results)
    for row, tree in enumerate(grown):
        own = slice(layout.starts[row], layout.starts[row + 1])
        alone = tree_attention(
            query[:, own],
            key[row : row + 1],
            value[row : row + 1],
            layout_of([layout.prefix_lengths[row]], [tree], [layout.first_queries[row]]),
            **options,
        )
        assert torch.equal(results[0][:, own], alone)


def test_queries_that_are_taken_in_bands_have_the_bits_of_few(library, threads):
    """Of many heads and sequences, what parts find is too much to be kept for all queries at a time."""
    threads(2)
    others, heads, head_dim = 31, 64, 16
    layout = layout_of([2000, *[3] * others], [[-1, *range(10), *[4] * 10], *[[-1]] * others])
    queries, parts = len(layout.parents[0]), -(-2000 // 256)
    (most,) = re.findall(r"MOST_PARTIAL = (\d+) << 20", (Path(native.__file__).parent / "attention.c").read_text())
    assert queries * (1 + others) * heads * parts * head_dim > int(most) << 20
    query, key, value = buffers(layout, heads, 2, head_dim)
    options = {"scale": 0.25, "window": 1990, "softcap": 30.0, "backend": "native"}
    together = tree_attention(query, key, value, layout, **options)
    for row, tree in enumerate(layout.parents):
        for first in range(0, len(tree), 8):
            own = slice(layout.starts[row] + first, layout.starts[row] + min(first + 8, len(tree)))
            few = layout_of([layout.prefix_lengths[row]], [tree[: first + 8]], [first])
            alone = tree_attention(query[:, own], key[row : row + 1], value[row : row + 1], few, **options)
            assert torch.equal(together[:, own], alone)


def test_what_a_window_hides_may_be_any_number(library):
    """The value of position 255 is infinite: node 0 sees it, node 1, whose window begins behind it, does not."""
    layout = TreeLayout.chain(600, 2)
    query, key, value = buffers(layout, 2, 1, 16)
    value[..., 255, :] = torch.inf
    options = {"scale": 0.25, "window": 346, "backend": "native"}
    together = tree_attention(query, key, value, layout, **options)
    alone = tree_attention(query[:, 1:], key, value, TreeLayout.chain(600, 2, 1), **options)
    assert not together[:, 0].isfinite().any()
    assert alone.isfinite().all()
    assert torch.equal(together[:, 1:], alone)


def test_a_part_of_which_nothing_is_likely_is_left_out(library):
    layout = TreeLayout.chain(600, 2)
    query, key, value = buffers(layout, 2, 1, 16)
    key[..., :256, :] = -torch.inf
    options = {"scale": 0.25}
    found = tree_attention(query.abs(), key, value, layout, **options, backend="native")
    expected = tree_attention(query.abs(), key, value, layout, **options, backend="reference")
    torch.testing.assert_close(found, expected)
    assert found.isfinite().all()


def test_a_batch_may_be_empty(library):
    nothing = layout_of([], [])
    out = tree_attention(torch.zeros(2, 0, 16), *torch.zeros(2, 0, 1, 8, 16), nothing, scale=0.25, backend="native")
    assert out.shape == (2, 0, 16)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak of a process so")
def test_what_parts_find_takes_bounded_memory(tmp_path):
    """512 queries of 128 heads behind 8,000 positions: without bands 150 MB, for each of these positions' 32 parts."""
    if load() is None:
        pytest.skip("no native kernels here")
    script = tmp_path / "peak.py"
    script.write_text("""
import torch
from talon_core.attention import TreeLayout
from talon_kernels.tree_attention import tree_attention

def peak(anew=False):
    if anew:
        with open("/proc/self/clear_refs", "w") as refs:
            refs.write("5")
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

torch.set_num_threads(2)
key, value = torch.randn(2, 1, 8, 8512, 16)
query = torch.randn(128, 512, 16)
tree_attention(query[:, :1], key, value, TreeLayout.chain(100, 1), scale=0.25, softcap=30.0, backend="native")
before = peak(anew=True)
out = tree_attention(query, key, value, TreeLayout.chain(8000, 512), scale=0.25, softcap=30.0, backend="native")
assert out.isfinite().all()
print(peak() - before)
""")
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) < 48


def check_that_one_without_nodes_takes_no_part(backend):
    layout, others = layout_of([5, 9, 5], [SEVEN, [], [-1, 0]]), layout_of([5, 5], [SEVEN, [-1, 0]])
    query, key, value = buffers(layout, 2, 2, 16)
    options = {"scale": 0.25, "backend": backend}
    out = tree_attention(query, key, value, layout, **options)
    assert out.shape == (2, 9, 16)
    assert torch.equal(out, tree_attention(query, key[::2], value[::2], others, **options))
    nobody = tree_attention(query[:, :0], key, value, layout_of([5, 9, 5], [[], [], []]), **options)
    assert nobody.shape == (2, 0, 16)


def test_a_sequence_without_nodes_takes_no_part(library):
    check_that_one_without_nodes_takes_no_part("native")


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_nor_does_it_elsewhere(backend):
    check_that_one_without_nodes_takes_no_part(backend)


def check_that_a_layer_has_what_the_whole_tree_has(backend):
    whole, layer = layout_of([63], [SEVEN]), layout_of([63], [SEVEN], [3])
    query, key, value = buffers(whole, 4, 2, 64)
    options = {"scale": 0.125, "backend": backend}
    expected = tree_attention(query, key, value, whole, **options)[:, 3:]
    got = tree_attention(query[:, 3:], key, value, layer, **options)
    if backend == "native":
        assert torch.equal(got, expected)
    torch.testing.assert_close(got, expected)


def test_a_layer_of_a_tree_gives_what_the_whole_tree_gives(library):
    check_that_a_layer_has_what_the_whole_tree_has("native")


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_so_does_a_layer_elsewhere(backend):
    check_that_a_layer_has_what_the_whole_tree_has(backend)


def test_scores_of_any_size_stay_finite(library):
    layout = layout_of([100], [SEVEN])
    query, key, value = buffers(layout, 2, 1, 64)
    out = tree_attention(query * 1e4, key, value, layout, scale=1.0, backend="native")
    assert out.isfinite().all()


def test_without_a_compiler_pytorch_answers():
    layout = layout_of([5], [SEVEN])
    query, key, value = buffers(layout, 2, 2, 16)
    with switch_off("no compiler today"):
        plain = tree_attention(query, key, value, layout, scale=0.25)
        assert torch.equal(plain, tree_attention(query, key, value, layout, scale=0.25, backend="sdpa"))
        capped = tree_attention(query, key, value, layout, scale=0.25, softcap=2.0)
        expected = tree_attention(query, key, value, layout, scale=0.25, softcap=2.0, backend="reference")
        assert torch.equal(capped, expected)
        with pytest.raises(ValueError, match="no compiler today"):
            tree_attention(query, key, value, layout, scale=0.25, backend="native")


def test_what_was_asked_for_is_never_replaced(library):
    layout = layout_of([5], [SEVEN])
    query, key, value = buffers(layout, 2, 2, 16)
    with pytest.raises(ValueError, match="softcap"):
        tree_attention(query, key, value, layout, scale=0.25, softcap=2.0, backend="sdpa")
    with pytest.raises(ValueError, match="float64"):
        tree_attention(query.double(), key.double(), value.double(), layout, scale=0.25, backend="native")
    with pytest.raises(ValueError, match="gradient"):
        tree_attention(query.clone().requires_grad_(), key, value, layout, scale=0.25, backend="native")
    with pytest.raises(ValueError, match="there are: native, triton, sdpa, reference"):
        tree_attention(query, key, value, layout, scale=0.25, backend="magic")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"layout": layout_of([5, 5], [SEVEN, SEVEN])}, "2 trees, the keys are of 1 sequences"),
        ({"layout": layout_of([6], [SEVEN])}, "sequence 0 has a prefix of 6 and 7 nodes, its key buffer 12 rows"),
        ({"layout": layout_of([2], [[*SEVEN, 0]])}, "8 queries, the query 7"),
        ({"layout": layout_of([2], [SEVEN], [8])}, "sequence 0 has 7 nodes, so its queries cannot start at 8"),
        ({"query": torch.zeros(3, 7, 16)}, "no multiple of kv_heads"),
        ({"query": torch.zeros(2, 7, 16).double()}, "must be the same"),
        ({"query": torch.zeros(1, 2, 7, 16)}, "query is"),
        ({"value": torch.zeros(1, 2, 11, 16)}, r"and value is \(batch, kv_heads, capacity, value_dim\)"),
        ({"softcap": 0.0}, "softcap is positive"),
        ({"window": 0}, "window is at least 1"),
        ({"sinks": torch.zeros(3)}, "sinks has shape"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(change, sentence):
    layout = layout_of([5], [SEVEN])
    query, key, value = buffers(layout, 2, 2, 16, spare=0)
    arguments = {"query": query, "key": key, "value": value, "layout": layout, "scale": 0.25, **change}
    with pytest.raises(ValueError, match=sentence):
        tree_attention(**arguments)


def test_parents_behind_their_children_are_refused(library):
    layout = layout_of([5], [[-1, 2, 0]])
    query, key, value = buffers(layout, 2, 2, 16)
    with pytest.raises(ValueError, match="before their children"):
        tree_attention(query, key, value, layout, scale=0.25, backend="native")
