"""Launches the Triton kernels that touch keys and values, each against its reference; a script without pytest.

So `compute-sanitizer` can watch it: `tests/gpu_check.py` runs it by itself and under its tools. It runs on a GPU, and
with `TRITON_INTERPRET=1` on the CPU. `--few` leaves most cases out. `--measure FILE` launches nothing, and writes what
kernels need on this GPU beside what `compiled.json` keeps for its kind.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import attrs
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # where pytest finds `talon_tests` too

from talon_kernels import compiling
from talon_kernels.commit_path import commit_path
from talon_kernels.rotary_write import rotary_write
from talon_kernels.tree_attention.triton import tree_attention_triton
from talon_tests.attended import buffers, check, layout_of, packed, used_rows
from talon_tests.pages import paged
from talon_tests.rounding import check_rounded

KEPT = Path(__file__).parents[1] / "kernels" / "compiled.json"

TREE = [-1, 0, 0, 1, 1, 2, 5, 3, 3, 4]
PREFIXES = {1: [70], 3: [130, 0, 61]}
PAGE = 64

MEASURED = {
    "commit_path": ("commit_path_64",),
    "tree_attention": (
        *("attend bf16 64 rows=16", "attend bf16 128 rows=16", "attend bf16 128 rows=64"),
        *("attend bf16 128 rows=128", "attend fp32 128 rows=16", "merge bf16 128 rows=16"),
    ),
}
"""Variants that are compiled and loaded to see what they need; a GPU has those of its kind."""


@attrs.frozen
class Attending:
    """One launch of `attend` and `merge`."""

    dtype: torch.dtype
    head_dim: int
    batch: int
    window: int | None = None
    in_pages: bool = False

    @property
    def name(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        how = [f"window {self.window}"] * (self.window is not None) + ["in pages"] * self.in_pages
        return ", ".join([f"attend {kind}, heads of {self.head_dim}, batch {self.batch}", *how])

    def run(self, device: torch.device) -> None:
        layout = layout_of(PREFIXES[self.batch], [TREE[: 10 - 3 * row] for row in range(self.batch)])
        query, key, value = buffers(layout, 4, 2, self.head_dim, self.head_dim, self.dtype, device)
        options: dict[str, Any] = {"scale": self.head_dim**-0.5, "window": self.window}
        pages, table = [key, value], None
        if self.in_pages:
            pages, table = paged([key, value], used_rows(layout, self.batch), PAGE, seed=0)
        # three programs, so that there are shares to merge on any GPU
        got = tree_attention_triton(query, *pages, packed(layout, device), table=table, programs=3, **options)
        check(got, query, key, value, layout, **options)


@attrs.frozen
class Committing:
    """One launch of `commit_path`, over buffers of pages."""

    dtype: torch.dtype

    @property
    def name(self) -> str:
        return f"commit_path {str(self.dtype).removeprefix('torch.')}, in pages"

    def run(self, device: torch.device) -> None:
        prefixes, taken = [5, 63, 0], [[0, 2, 3, 29], [0, 1, 2, *range(5, 40)], []]
        rows = [torch.randn(3, heads, 110, 64).to(self.dtype).to(device) for heads in (2, 3)]
        sequences = torch.tensor([[prefix, 40, 0, 0] for prefix in prefixes], dtype=torch.int32, device=device)
        walks = torch.tensor([[len(path), 9, *path, *[39] * (40 - len(path))] for path in taken], dtype=torch.int32)
        used = [prefix + 40 for prefix in prefixes]
        pages, table = paged(rows, used, PAGE, seed=1)
        expected = [page.clone() for page in pages]
        commit_path(pages, sequences, walks.to(device), table, backend="triton")
        commit_path(expected, sequences, walks.to(device), table, backend="reference")
        for got, own in zip(pages, expected, strict=True):
            assert torch.equal(got.view(torch.uint8), own.view(torch.uint8)), "other rows moved than in the reference"


@attrs.frozen
class Rotating:
    """One launch of `rotary_write`: some dimensions are turned, in heads whose size is no power of two."""

    dtype: torch.dtype

    @property
    def name(self) -> str:
        return f"rotary_write {str(self.dtype).removeprefix('torch.')}, in pages"

    def run(self, device: torch.device) -> None:
        rows, heads, kv_heads, head_dim, rotary = 7, 6, 2, 80, 32
        query, key, value = (torch.randn(rows, count, head_dim).to(self.dtype) for count in (heads, kv_heads, kv_heads))
        turns = 7 * torch.rand(rows, rotary)
        given = [query, key, value, *(angles.to(self.dtype) for angles in (turns.cos(), turns.sin()))]
        pages = [torch.randn(5, kv_heads, PAGE, head_dim).to(self.dtype) for _ in range(2)]
        places = torch.tensor([[3, 3, 1, 4, 0, 2, 2], [0, 63, 1, 5, 0, 7, 62]])
        low, truth = ([one.clone().to(of) for one in (*given, *pages)] for of in (self.dtype, torch.float64))
        low_query, true_query = (rotary_write(*of, *places, backend="reference") for of in (low, truth))
        there = [one.to(device) for one in (*given, *pages, *places)]
        got = rotary_write(*there, backend="triton")
        check_rounded(got, low_query, true_query)
        for own, others, true in zip(there[5:7], low[5:], truth[5:], strict=True):
            check_rounded(own, others, true)
        assert torch.equal(there[6].cpu().view(torch.uint8), low[6].view(torch.uint8)), "values are not those given"


def cases(few: bool) -> Iterator[Attending | Committing | Rotating]:
    """What is launched."""
    ways: tuple[dict[str, Any], ...] = ({}, {"window": 40}, {"in_pages": True})
    if few:
        yield Attending(torch.bfloat16, 64, 1, in_pages=True)
    else:
        for dtype, head_dim, batch, way in product((torch.bfloat16, torch.float32), (64, 128), (1, 3), ways):
            yield Attending(dtype, head_dim, batch, **way)
    yield Committing(torch.bfloat16)
    yield Rotating(torch.bfloat16)


def measured() -> list[dict[str, Any]]:
    """What some variants need, as this GPU's driver says when it has loaded them, and what is kept of them."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    major, minor = torch.cuda.get_device_capability()
    target = next((one for one in compiling.TARGETS if one.name == f"cuda:{10 * major + minor}"), None)
    if target is None:
        return []
    kept, found = compiling.read_kept(KEPT), []
    for operation, names in MEASURED.items():
        for number, (name, function, signature, constants, marked) in enumerate(compiling._variants(operation)):
            if name not in names or marked.get("kind", target.kind) != target.kind:
                continue
            options = {option: value for option, value in marked.items() if option not in compiling.MARKS}
            source = ASTSource(function, signature, constants, compiling.alignment(function, signature))
            kernel = triton.compile(source, GPUTarget(target.backend, target.arch, target.processor.lanes), options)
            kernel.run  # noqa: B018  # which loads it, whereupon its registers are known
            said = kept.get(compiling.key_of(operation, number, target))
            found.append(
                {
                    "variant": name,
                    "registers": kernel.n_regs,
                    "shared": kernel.metadata.shared,
                    "spilled": kernel.n_spills,
                    "kept": None if said is None else {of: said[of] for of in ("registers", "shared", "spilled")},
                }
            )
    return found


def main() -> None:
    """Run all cases; the first one that fails raises, after its name was printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", action="store_true", help="leave most cases out")
    parser.add_argument("--measure", type=Path, metavar="FILE", help="only write what kernels need here")
    options = parser.parse_args()
    if options.measure is not None:
        found = measured() if torch.cuda.is_available() else []
        options.measure.write_text(json.dumps(found), encoding="utf-8")
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    for case in cases(options.few):
        print(case.name, flush=True)
        case.run(device)


if __name__ == "__main__":
    main()
