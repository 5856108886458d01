"""Accepted rows move to the end of the prefix, bit for bit, and nothing else moves."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from talon_kernels.commit_path import BufferTable, commit_path
from talon_kernels.commit_path.native import NativeMover
from talon_tests.pages import paged

TYPES = [torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.float64]


def contiguous(batch, heads, capacity, dim):
    return (batch, heads, capacity, dim), lambda storage: storage


def rows_before_heads(batch, heads, capacity, dim):
    return (batch, capacity, heads, dim), lambda storage: storage.transpose(1, 2)


def part_of_everything(batch, heads, capacity, dim):
    shape = (2 * batch + 1, heads + 2, capacity + 3, dim + 5)
    return shape, lambda storage: storage[1::2, 1:-1, 2:-1, 3 : 3 + dim]


def beside_its_values(batch, heads, capacity, dim):
    return (batch, heads, capacity, 2, dim), lambda storage: storage[:, :, :, 1]


LAYOUTS = [contiguous, rows_before_heads, part_of_everything, beside_its_values]


@st.composite
def paths(draw, nodes):
    """Some of a tree's nodes, ascending: any of them, from the root on, to the last one or none at all."""
    if not nodes:
        return []
    kept = draw(st.lists(st.booleans(), min_size=nodes - 1, max_size=nodes - 1))
    path = [0] + [node for node, keep in enumerate(kept, start=1) if keep]
    return draw(st.sampled_from([path, path, path, list(range(nodes)), [0, nodes - 1][:nodes], []]))


@st.composite
def cases(draw):
    batch = draw(st.integers(1, 5))
    nodes = [draw(st.sampled_from([0, 1, 2, 7, 18, 63])) for _ in range(batch)]
    prefixes = [draw(st.sampled_from([0, 1, 7, 100])) for _ in range(batch)]
    taken = [draw(paths(count)) for count in nodes]
    capacity = max(prefix + count for prefix, count in zip(prefixes, nodes, strict=True)) + draw(st.integers(0, 3))
    return {
        "shapes": [
            (batch, draw(st.integers(1, 3)), capacity + 7 * number, draw(st.sampled_from([1, 7, 16, 63, 64, 100])))
            for number in range(draw(st.integers(1, 4)))
        ],
        "layouts": draw(st.lists(st.sampled_from(LAYOUTS), min_size=4, max_size=4)),
        "dtype": draw(st.sampled_from(TYPES)),
        "prefixes": prefixes,
        "nodes": nodes,
        "paths": taken,
        "longest": max(len(path) for path in taken) + draw(st.integers(0, 2)),
        "seed": draw(st.integers(0, 5)),
    }


def bits(tensor):
    """The bytes of a tensor: NaN equals NaN, 0 is not -0."""
    return tensor.cpu().contiguous().flatten().view(torch.uint8)


def noise(shape, dtype, device, seed):
    """Any bits at all, NaN and infinity among them."""
    count = torch.Size(shape).numel() * torch.empty((), dtype=dtype).element_size()
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=random).view(dtype).view(shape).to(device)


def buffers(case, device):
    """The storage of each buffer, and the buffers."""
    storages, views = [], []
    for number, (shape, layout) in enumerate(zip(case["shapes"], case["layouts"], strict=False)):
        stored, view = layout(*shape)
        storages.append(noise(stored, case["dtype"], device, case["seed"] + number))
        views.append(view(storages[-1]))
        assert views[-1].shape == shape
    return storages, views


def numbers(case, device):
    """`sequences` and `walks`; what is not read holds nonsense."""
    sequences = [[prefix, nodes, 7, -5] for prefix, nodes in zip(case["prefixes"], case["nodes"], strict=True)]
    walks = [[len(path), 99, *path, *[63] * (case["longest"] - len(path))] for path in case["paths"]]
    return (
        torch.tensor(sequences, dtype=torch.int32, device=device),
        torch.tensor(walks, dtype=torch.int32, device=device).reshape(len(walks), 2 + case["longest"]),
    )


def committed(case, storages, device, backend):
    """What the storages hold afterwards; they stay as they are."""
    copies = [storage.clone() for storage in storages]
    views = [layout(*shape)[1](copy) for shape, layout, copy in zip(case["shapes"], case["layouts"], copies)]  # noqa: B905
    commit_path(BufferTable(views), *numbers(case, device), backend=backend)
    return copies


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(case=cases())
def test_triton_moves_what_the_reference_moves(device, case):
    storages, _ = buffers(case, device)
    got = committed(case, storages, device, "triton")
    expected = committed(case, storages, device, "reference")
    for mine, theirs in zip(got, expected, strict=True):
        assert torch.equal(bits(mine), bits(theirs))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(case=cases())
def test_each_row_of_the_path_stands_in_its_place_and_the_others_are_as_they_were(case):
    cpu = torch.device("cpu")
    storages, views = buffers(case, cpu)
    expected = [storage.clone() for storage in storages]
    for storage, layout, shape, view in zip(expected, case["layouts"], case["shapes"], views, strict=False):
        new = layout(*shape)[1](storage)
        for row, (prefix, path) in enumerate(zip(case["prefixes"], case["paths"], strict=True)):
            for place, node in enumerate(path):
                new[row, :, prefix + place] = view[row, :, prefix + node]
    for mine, theirs in zip(committed(case, storages, cpu, "reference"), expected, strict=True):
        assert torch.equal(bits(mine), bits(theirs))


@pytest.mark.parametrize("length", [15, 16, 17, 40, 63])
@pytest.mark.parametrize("skipped", [1, 2, 16])
@pytest.mark.parametrize("dim", [1, 100])
def test_long_paths_overwrite_nothing_they_still_need(device, length, skipped, dim):
    """Each row moves up by a few places, into rows that others move out of, in one tile or from tile to tile."""
    path = [0, *range(1 + skipped, length + skipped)]
    buffer = noise((1, 2, 100, dim), torch.bfloat16, device, 0)
    before = buffer.clone()
    sequences = torch.tensor([[7, 80, 0, 0]], dtype=torch.int32, device=device)
    walks = torch.tensor([[length, 5, *path]], dtype=torch.int32, device=device)
    commit_path([buffer], sequences, walks, backend="triton")
    assert torch.equal(bits(buffer[:, :, 7 : 7 + length]), bits(before[:, :, [7 + node for node in path]]))
    assert torch.equal(bits(buffer[:, :, :8]), bits(before[:, :, :8]))
    assert torch.equal(bits(buffer[:, :, 7 + length :]), bits(before[:, :, 7 + length :]))


@pytest.mark.parametrize("backend", ["triton", "reference"])
@pytest.mark.parametrize("page", [1, 8, 64])
def test_rows_in_pages_move_as_rows_in_one_piece(device, backend, page):
    """From page to page and within one; sequences have pages in any order, and one has none."""
    prefixes, nodes = [5, 63, 0, 100, 16], [30, 20, 0, 63, 7]
    taken = [[0, 2, 3, 29], [0, 1, 2, 19], [], [0, *range(3, 63, 2)], list(range(7))]
    used = [prefix + count for prefix, count in zip(prefixes, nodes, strict=True)]
    rows = [noise((5, 2, 170, 16), torch.bfloat16, device, 1), noise((5, 3, 170, 7), torch.bfloat16, device, 2)]
    case = {"prefixes": prefixes, "nodes": nodes, "paths": taken, "longest": 40}
    pages, table = paged(rows, used, page, seed=3)
    moved = [own.clone() for own in pages]
    commit_path(moved, *numbers(case, device), table, backend=backend)
    commit_path(rows, *numbers(case, device), backend="reference")
    expected, same = paged(rows, used, page, seed=3)
    assert torch.equal(table, same)
    assert not torch.equal(bits(moved[0]), bits(pages[0]))
    for mine, theirs in zip(moved, expected, strict=True):
        assert torch.equal(bits(mine), bits(theirs))


@pytest.mark.parametrize("backend", ["triton", "reference"])
def test_the_tree_of_seven(device, backend):
    #        0
    #      /   \
    #     1     2
    #    / \     \
    #   3   4     5
    #   |
    #   6            accepted: 0, 1, 3, 6 in the first sequence, 0, 2, 5 in the second, nothing in the third
    key = torch.arange(36.0, device=device).reshape(3, 1, 12, 1).clone()
    value = -key.repeat(1, 2, 1, 3)
    sequences = torch.tensor([[2, 7, 0, 0], [4, 7, 0, 7], [5, 0, 0, 14]], dtype=torch.int32, device=device)
    walks = torch.tensor(
        [[4, 9, 0, 1, 3, 6], [3, 9, 0, 2, 5, -1], [0, -1, -1, -1, -1, -1]], dtype=torch.int32, device=device
    )
    commit_path([key, value], sequences, walks, backend=backend)
    expected = [
        [0, 1, 2, 3, 5, 8, 6, 7, 8, 9, 10, 11],
        [12, 13, 14, 15, 16, 18, 21, 19, 20, 21, 22, 23],
        list(range(24, 36)),
    ]
    assert key[:, 0, :, 0].tolist() == expected
    assert all(torch.equal(-value[:, head, :, column], key[:, 0, :, 0]) for head in range(2) for column in range(3))


def test_the_same_memory_written_anew_moves_other_rows(device):
    """What a captured graph relies on: tables, numbers and buffers stay where they are, their contents change."""
    buffer = noise((2, 2, 30, 7), torch.float16, device, 0)
    table = BufferTable([buffer])
    sequences = torch.zeros(2, 4, dtype=torch.int32, device=device)
    walks = torch.zeros(2, 6, dtype=torch.int32, device=device)
    for seed, (prefixes, paths_) in enumerate(
        [((3, 5), ([0, 2], [0, 1, 4])), ((0, 20), ([], [0, 3, 4, 9])), ((11, 2), ([0], [0, 8, 9]))]
    ):
        buffer.copy_(noise(buffer.shape, torch.float16, device, seed))
        expected = buffer.clone()
        sequences[:, 0] = torch.tensor(prefixes)
        for row, path in enumerate(paths_):
            walks[row] = torch.tensor([len(path), 1, *path, *[-1] * (4 - len(path))])
        commit_path([expected], sequences, walks, backend="reference")
        commit_path(table, sequences, walks, backend="triton")
        assert torch.equal(bits(buffer), bits(expected))


def test_without_sequences_heads_or_numbers_there_is_nothing_to_move(device):
    for shape in ((0, 2, 5, 3), (1, 0, 5, 3), (1, 2, 5, 0)):
        sequences = torch.zeros(shape[0], 4, dtype=torch.int32, device=device)
        walks = torch.tensor([[2, 0, 0, 1]], dtype=torch.int32, device=device)[: shape[0]]
        for backend in ("triton", "reference"):
            empty = torch.zeros(shape, device=device)
            commit_path([empty, empty.clone()], sequences, walks, backend=backend)


@pytest.mark.parametrize(
    ("buffer", "word"),
    [
        (torch.zeros(2, 3, 5, 64, dtype=torch.bfloat16), 8),
        (torch.zeros(2, 3, 5, 63, dtype=torch.bfloat16), 2),
        (torch.zeros(2, 3, 5, 66, dtype=torch.bfloat16), 4),
        (torch.zeros(2, 3, 5, 66, dtype=torch.bfloat16)[..., 1:65], 2),
        (torch.zeros(2, 3, 5, 66)[..., :64], 8),
        (torch.zeros(2, 3, 5, 63), 4),
        (torch.zeros(2, 3, 5, 7, dtype=torch.int8), 1),
        (torch.zeros(1, 1, 1, 8, dtype=torch.int8).as_strided((1, 1, 1, 8), (3, 5, 7, 1)), 8),
    ],
)
def test_words_are_as_wide_as_all_rows_allow(buffer, word):
    assert BufferTable([buffer]).word == word


def test_the_cpu_takes_the_reference_and_says_so_where_triton_is_asked_for(monkeypatch, device):
    monkeypatch.delenv("TRITON_INTERPRET")
    arguments = (
        [torch.zeros(1, 1, 5, 3)],
        *numbers({"prefixes": [1], "nodes": [2], "paths": [[0]], "longest": 1}, "cpu"),
    )
    commit_path(*arguments)
    with pytest.raises(
        ValueError, match=r"'triton' cannot be used here: it runs on GPUs, not on cpu.*TRITON_INTERPRET"
    ):
        commit_path(*arguments, backend="triton")
    monkeypatch.setattr("talon_kernels.triton_runtime.find_spec", lambda _: None)
    commit_path(*arguments)
    with pytest.raises(ValueError, match="triton is not installed"):
        commit_path(*arguments, backend="triton")


BUFFER = torch.zeros(2, 1, 5, 3)
SEQUENCES = torch.zeros(2, 4, dtype=torch.int32)
WALKS = torch.zeros(2, 3, dtype=torch.int32)
TABLE = torch.zeros(2, 1, dtype=torch.int32)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: BufferTable([]), "no buffers"),
        (lambda: BufferTable([BUFFER[0]]), r"buffer 0 has shape \(1, 5, 3\)"),
        (lambda: BufferTable([BUFFER, BUFFER[:1]]), r"same batch; buffer 1 has shape \(1, 1, 5, 3\)"),
        (lambda: BufferTable([BUFFER, BUFFER.half()]), "buffer 1 is torch.float16 on cpu, the first torch.float32"),
        (lambda: BufferTable([BUFFER.transpose(2, 3)]), "last stride 3; it must be 1"),
        (lambda: BufferTable([BUFFER.expand(2, 4, 5, 3)]), r"buffer 0 .* none may be 0"),
        (lambda: BufferTable([BUFFER, BUFFER]), "buffer 1 starts where buffer 0 does; each must be given once"),
        (lambda: commit_path([BUFFER], SEQUENCES[:1], WALKS), r"batch of the buffers is 2; got \(1, 4\) and \(2, 3\)"),
        (lambda: commit_path([BUFFER], SEQUENCES, WALKS[:1]), r"got \(2, 4\) and \(1, 3\)"),
        (lambda: commit_path([BUFFER], SEQUENCES, WALKS[:, :1]), r"got \(2, 4\) and \(2, 1\)"),
        (
            lambda: commit_path([BUFFER], SEQUENCES.long(), WALKS),
            "sequences must be contiguous int32 on cpu.*got torch.int64",
        ),
        (
            lambda: commit_path([BUFFER], SEQUENCES, WALKS.T.contiguous().T),
            r"walks must be contiguous .* strides \(1, 2\)",
        ),
        (lambda: commit_path([BUFFER], SEQUENCES.to("meta"), WALKS), "on cpu, where the buffers are; .* on meta"),
        (lambda: commit_path([BUFFER], SEQUENCES, WALKS, TABLE[:1]), r"batch of the table is 1; got \(2, 4\)"),
        (lambda: commit_path([BUFFER], SEQUENCES, WALKS, TABLE.long()), "table must be contiguous int32"),
        (lambda: commit_path([BUFFER], SEQUENCES, WALKS, TABLE), "a page has 5 rows; that must be a power of two"),
        (
            lambda: commit_path([BUFFER, torch.zeros(2, 1, 4, 3)], SEQUENCES, WALKS, TABLE),
            r"pages have \[4, 5\] rows; they must have the same number",
        ),
        (lambda: commit_path([BUFFER], SEQUENCES, WALKS, backend="magic"), "no backend 'magic' .* triton, reference"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


@settings(deadline=None)
@given(
    slots=st.integers(1, 3),
    heads=st.integers(1, 3),
    size=st.sampled_from([1, 7, 16, 33]),
    prefix=st.integers(0, 9),
    path=paths(12),
    layers=st.integers(1, 3),
)
def test_rows_move_in_c_as_in_pytorch(library, slots, heads, size, prefix, path, layers):
    generator = torch.Generator().manual_seed(0)
    shape = (slots, heads, prefix + 14, size)
    buffers = [torch.randn(shape, generator=generator) for _ in range(layers)]
    expected = [buffer.clone() for buffer in buffers]
    slot = slots - 1
    for buffer in expected:
        own = buffer[slot]
        own[:, prefix : prefix + len(path)] = own.index_select(1, torch.tensor(path, dtype=torch.int64) + prefix)
    NativeMover(library, buffers)(slot, prefix, np.array(path, dtype=np.int64))
    assert all(torch.equal(moved, right) for moved, right in zip(buffers, expected, strict=True))
