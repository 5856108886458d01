"""Tree attention in Triton, by its interpreter or on a GPU: against a softmax over the keys that each query sees."""

from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from talon_core.attention import PackedShape, TooLargeError
from talon_tests.attended import buffers, check, layout_of, packed, used_rows
from talon_tests.pages import paged

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
kernels = pytest.importorskip("talon_kernels.tree_attention.triton")
OutOfResources = pytest.importorskip("triton.runtime.errors").OutOfResources
tree_attention_triton, tanh = kernels.tree_attention_triton, kernels._tanh

#   0
#   |- 1
#   |  |- 3
#   |  `- 4
#   `- 2
#      `- 5
#         `- 6
SEVEN = [-1, 0, 0, 1, 1, 2, 5]
SEEN = """
    11 1......
    11 11.....
    11 1.1....
    11 11.1...
    11 11..1..
    11 1.1..1.
    11 1.1..11
"""

DIMS = [1, 7, 16, 63, 64, 80, 96, 100, 128, 256]

ROWS = 256
"""Queries of all heads, but where trees have more with one head of queries for each of keys.

The interpreter's work is by programs, and those that merge few rows take as long as others: there are 16, or few more.
"""


@st.composite
def cases(draw):
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        nodes = draw(st.integers(0, 12) | st.sampled_from([31, 33, 64, 70]))
        reach = draw(st.sampled_from([1, 3, 100]))  # from chains to bushes
        random = np.random.default_rng(draw(st.integers(0, 99)))
        tree = [int(random.integers(max(-1, i - reach), i)) if random.random() > 0.05 else -1 for i in range(nodes)]
        rows.append((draw(st.integers(0, 3) | st.integers(0, 300)), tree, draw(st.integers(0, nodes) | st.just(0))))
    prefixes, trees, firsts = zip(*rows, strict=True)
    layout = layout_of(prefixes, trees, firsts)
    kv_heads, head_dim = draw(st.integers(1, 2)), draw(st.sampled_from(DIMS))
    heads = kv_heads * draw(st.integers(1, min(5, max(1, ROWS // max(1, kv_heads * layout.queries)))))
    merged = [rows for rows in (1, 2, 4) if heads * layout.queries <= 16 * rows]
    return SimpleNamespace(
        layout=layout,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=draw(st.just(head_dim) | st.sampled_from(DIMS)),
        dtype=draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
        window=draw(st.none() | st.integers(1, 5) | st.integers(1, 300)),
        softcap=draw(st.none() | st.sampled_from([0.5, 30.0])),
        sinks=draw(st.booleans()),
        programs=draw(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 9, 12, 40])),
        merged=draw(st.sampled_from([*merged, 16])),
        more=draw(st.sampled_from([0, 0, 3])),
        strided=draw(st.booleans()),
        page=draw(st.sampled_from([None, 64, 64, 128])),
        seed=draw(st.integers(0, 99)),
    )


def run(case, device):
    """By the interpreter, a program merges as many rows as the case says; on a GPU as many as it always does there."""
    query, key, value = buffers(
        case.layout, case.heads, case.kv_heads, case.head_dim, case.value_dim, case.dtype, device,
        seed=case.seed, strided=case.strided, more=case.more,
    )  # fmt: skip
    options = {"scale": 1.7 * case.head_dim**-0.5, "window": case.window, "softcap": case.softcap}
    if case.sinks:
        options["sinks"] = torch.linspace(-1, 2, case.heads).to(case.dtype).to(device)
    layout = packed(case.layout, device, case.more, 5 * case.more, case.more)
    kept = key, value
    if case.page is not None:
        (key, value), options["table"] = paged([key, value], used_rows(case.layout, len(key)), case.page, case.seed)
    with pytest.MonkeyPatch.context() as patch:
        if device.type == "cpu":
            patch.setattr(kernels, "merged_rows", lambda rows: case.merged)
        got = tree_attention_triton(query, key, value, layout, programs=case.programs, **options)
    options.pop("table", None)
    check(got, query, *kept, case.layout, **options)


@pytest.mark.slow
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_it_has_the_error_of_its_type(device, case):
    assume(case.layout.queries)
    run(case, device)


def case_of(layout, **options):
    plain = {"heads": 4, "kv_heads": 2, "head_dim": 16, "value_dim": 16, "dtype": torch.float32, "window": None}
    rest = {
        "softcap": None,
        "sinks": False,
        "programs": 8,
        "merged": 16,
        "more": 0,
        "strided": False,
        "seed": 1,
        "page": None,
    }
    return SimpleNamespace(layout=layout, **{**plain, **rest, **options})


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize(("page", "dtype", "strided"), [(64, torch.bfloat16, False), (256, torch.float32, True)])
def test_pages_in_any_order_give_the_bits_of_rows_in_one_piece(device, page, dtype, strided, window):
    """Trees begin in a page and end in the next one, prefixes end with a page, and a sequence may have no page."""
    layout = layout_of([60, 128, 0, 300], [SEVEN, [-1, *[0] * 69], [], SEVEN], [0, 3, 0, 2])
    query, key, value = buffers(layout, 2, 1, 64, 80, dtype, device, strided=strided, more=1)
    options = {"scale": 0.2, "window": window, "programs": 5}
    expected = tree_attention_triton(query, key, value, packed(layout, device, batch=1), **options)
    assert expected[:, : layout.queries].isfinite().all()
    (keys, values), table = paged([key, value], used_rows(layout, 5), page, seed=0)
    got = tree_attention_triton(query, keys, values, packed(layout, device, batch=1), table=table, **options)
    assert torch.equal(got[:, : layout.queries], expected[:, : layout.queries])


@pytest.mark.parametrize("rows", [1, 16, 32, 48, 96])
def test_pages_that_would_cut_a_tile_are_refused(device, rows):
    layout = packed(layout_of([5], [SEVEN]), device)
    query, key = torch.zeros(2, 7, 64, device=device).half(), torch.zeros(9, 1, rows, 64, device=device).half()
    table = torch.zeros(1, 9, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=f"a page has {rows} rows; that must be a power of two and at least 64"):
        tree_attention_triton(query, key, key, layout, scale=1.0, table=table)


@pytest.mark.parametrize("programs", [1, 20])
def test_the_tree_of_seven_sees_what_is_drawn(device, programs):
    layout = layout_of([2], [SEVEN])
    query = torch.zeros(3, 7, 16, device=device)  # all scores alike
    key, value = torch.full((1, 1, 11, 16), torch.nan), torch.full((1, 1, 11, 9), torch.nan)
    key[:, :, :9], value[:, :, :9] = 5.0, torch.eye(9)
    out = tree_attention_triton(
        query, key.to(device), value.to(device), packed(layout, device), scale=1.0, programs=programs
    ).cpu()
    drawn = [[mark == "1" for mark in line.replace(" ", "")] for line in SEEN.split("\n") if line.strip()]
    mask = torch.tensor(drawn, dtype=torch.float32)
    torch.testing.assert_close(out, (mask / mask.sum(1, keepdim=True)).expand(3, 7, 9))


@pytest.mark.parametrize(
    ("prefix", "tree", "options"),
    [
        (0, [-1], {"head_dim": 1, "value_dim": 1, "merged": 1}),
        (3, list(range(-1, 99)), {"window": 7}),  # the deepest
        (3, [-1, *[0] * 99], {"programs": 20, "merged": 4}),  # the widest
        (3, [-1] * 100, {"window": 3}),
        (2500, SEVEN, {"programs": 40, "heads": 8, "merged": 2}),
        (2500, SEVEN, {"programs": 40, "window": 1000, "sinks": True, "merged": 1}),
        (100, list(range(-1, 299)), {"softcap": 20.0, "dtype": torch.bfloat16, "head_dim": 64}),  # a prompt
    ],
)
def test_extreme_trees_and_prefixes(device, prefix, tree, options):
    run(case_of(layout_of([prefix], [tree]), **options), device)


def test_a_node_alone_gets_its_own_value(device):
    layout = layout_of([0], [[-1]])
    query, key, value = buffers(layout, 2, 2, 7, 5, torch.float16, device)
    out = tree_attention_triton(query, key, value, packed(layout, device), scale=0.3)
    assert torch.equal(out[:, 0], value[0, :, 0])


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_of_any_size_stay_finite(device, dtype, sinks):
    layout = layout_of([150], [SEVEN])
    query, key, value = buffers(layout, 2, 1, 64, 64, dtype, device)
    query *= 1e4
    options = {"scale": 0.125, "sinks": torch.tensor([-1e4, 2e4], device=device) if sinks else None}
    out = tree_attention_triton(query, key, value, packed(layout, device), programs=5, **options)
    assert out.isfinite().all()
    check(out, query, key, value, layout, **options)


def test_in_memory_heads_stand_last_but_one(device):
    layout = layout_of([5], [SEVEN])
    query, key, value = buffers(layout, 4, 2, 16, 7, torch.float32, device)
    out = tree_attention_triton(query, key, value, packed(layout, device), scale=0.25)
    assert out.shape == (4, 7, 7)
    assert out.transpose(0, 1).is_contiguous()


def test_without_nodes_the_output_is_zero(device):
    nobody = layout_of([5, 0], [[], []])
    key = torch.full((2, 2, 9, 16), torch.nan, device=device)
    for room in (0, 1, 6):
        layout = packed(nobody, device, nodes=room, queries=room)
        query = torch.full((4, room, 16), torch.nan, device=device)
        out = tree_attention_triton(query, key, key, layout, scale=0.25)
        assert torch.equal(out, torch.zeros(4, room, 16, device=device))


LAYOUTS = [
    layout_of([90, 7], [SEVEN, [-1, 0, 0]]),
    layout_of([0, 200], [[-1], []]),
    layout_of([3, 130], [SEVEN, SEVEN], [4, 2]),
    layout_of([5], [list(range(-1, 11))]),
]


def test_memory_written_anew_gives_the_answer_of_the_new_layout(device):
    """What replaying a CUDA graph relies on: all arguments are as before, the numbers in device memory are others."""
    shape = PackedShape(2, 12, 16, 12)
    numbers, there = np.zeros(shape.size, dtype=np.int32), torch.zeros(shape.size, dtype=torch.int32, device=device)
    layout = shape.views(there)
    query = torch.empty(4, 16, 16, device=device)
    key, value = torch.empty(2, 2, 210, 16, device=device), torch.empty(2, 2, 210, 16, device=device)
    for step, now in enumerate(LAYOUTS):
        shape.write(now, numbers)
        there.copy_(torch.from_numpy(numbers))
        filled = buffers(now, 4, 2, 16, 16, torch.float32, seed=step, more=16)
        query.copy_(filled[0][:, :16])
        for buffer, new in zip((key, value), filled[1:], strict=True):
            buffer.fill_(torch.nan)
            buffer[:, :, : new.shape[2]].copy_(new[:2])
        out = tree_attention_triton(query, key, value, layout, scale=0.3, window=150, programs=12)
        check(out, query, key, value, now, scale=0.3, window=150)


def test_on_a_gpu_a_captured_graph_follows_the_layout(device):
    if device.type != "cuda":
        pytest.skip("no GPU here")
    shape = PackedShape(2, 12, 16, 12)
    numbers, there = np.zeros(shape.size, dtype=np.int32), torch.zeros(shape.size, dtype=torch.int32, device=device)
    query = torch.randn(4, 16, 16, device=device)
    key, value = torch.randn(2, 2, 210, 16, device=device), torch.randn(2, 2, 210, 16, device=device)

    def attend():
        return tree_attention_triton(query, key, value, shape.views(there), scale=0.3)

    attend()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend()
    for now in LAYOUTS:
        shape.write(now, numbers)
        there.copy_(torch.from_numpy(numbers))
        graph.replay()
        check(out, query, key, value, now, scale=0.3)


def test_what_is_launched_depends_on_shapes_alone(monkeypatch):
    launched = []

    def note(name):
        def launch(*arguments, **constants):
            sizes = [tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in arguments]
            launched[-1] += [name, sizes, constants]

        class Noted:
            def __getitem__(self, grid):
                launched[-1].append(grid)
                return launch

        return Noted()

    for name in ("attend", "merge"):
        monkeypatch.setattr(kernels, name, note(name))
    query, key = torch.zeros(4, 16, 16), torch.zeros(2, 2, 210, 16)
    for layout in LAYOUTS:
        launched.append([])
        shape = PackedShape(2, 12, 16, 12)
        more = [one - own for one, own in zip(attrs.astuple(shape), attrs.astuple(layout.shape), strict=True)]
        here = packed(layout, "cpu", *more)
        tree_attention_triton(query, key, key, here, scale=0.3, programs=30)
    assert len(launched[0]) == 8
    assert all(launch == launched[0] for launch in launched)


@pytest.mark.parametrize("kernel", ["attend", "merge"])
def test_a_gpu_without_room_for_a_kernel_is_told_of_with_what_helps(monkeypatch, kernel):
    def launch(*_, **__):
        raise OutOfResources(270336, 232448, "shared memory")

    class Kernel:
        def __init__(self, fails):
            self.launch = launch if fails else lambda *_, **__: None

        def __getitem__(self, grid):
            return self.launch

    for name in ("attend", "merge"):
        monkeypatch.setattr(kernels, name, Kernel(name == kernel))
    query, key = torch.zeros(4, 16, 16), torch.zeros(2, 2, 210, 16)
    here = packed(LAYOUTS[0], "cpu")
    says = (
        "tiles of .* rows and heads of 16 .* 270336 of shared memory, and this GPU has 232448; take .* smaller budget"
    )
    with pytest.raises(TooLargeError, match=says):
        tree_attention_triton(query[:, : LAYOUTS[0].queries], key, key, here, scale=0.3, programs=30)


@pytest.mark.parametrize(("group", "count"), [(4, 12), (4, 1), (7, 9), (1, 64)])
@pytest.mark.parametrize("sequences", [1, 5])
def test_keys_are_read_once_whatever_the_batch_has_room_for(monkeypatch, sequences, group, count):
    """Where a tile has room for the rows of a sequence; a batch of 5 has room for 16."""
    found = []

    class Noted:
        def __getitem__(self, grid):
            return lambda *_, ROWS, **__: found.append(ROWS)

    for name in ("attend", "merge"):
        monkeypatch.setattr(kernels, name, Noted())
    counts = [count, *[1] * (sequences - 1)]
    layout = layout_of([9] * sequences, [range(-1, own - 1) for own in counts])
    for room in (0, 3 * sequences):
        query, key = torch.zeros(group, sum(counts) + room, 64), torch.zeros(sequences + room, 1, 64, 64)
        here = packed(layout, "cpu", room, queries=room)
        tree_attention_triton(query.bfloat16(), key.bfloat16(), key.bfloat16(), here, scale=0.3, programs=30)
    assert {*found} == {max(16, 1 << (count * group - 1).bit_length())}


@triton.jit
def _tanh_of(numbers, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(numbers + at, tanh(tl.load(numbers + at)))


def test_tanh_is_right_relative_to_itself(device):
    numbers = torch.cat([torch.logspace(-30, 1.5, 500), torch.linspace(0.5, 0.8, 500), torch.tensor([0.0, 1e15])])
    numbers = torch.nn.functional.pad(torch.cat([numbers, -numbers]), (0, 44))
    expected, got = numbers.double().tanh(), numbers.to(device)
    _tanh_of[(1,)](got, SIZE=2048, enable_fp_fusion=True)
    assert ((got.cpu().double() - expected).abs() <= 4 * torch.finfo(torch.float32).eps * expected.abs()).all()


def test_plain_decoding_takes_the_smallest_tiles_and_trees_larger_ones():
    for kind in ("hopper", "amd", "other"):
        sizes = [kernels.blocks(128, 128, rows, torch.bfloat16, kind).rows for rows in (1, 16, 17, 60, 240)]
        assert sizes == [16, 16, 32, 64, 128 if kind == "hopper" else 64]
    assert kernels.blocks(128, 128, 240, torch.bfloat16, "turing").rows == 16  # more would spill registers
