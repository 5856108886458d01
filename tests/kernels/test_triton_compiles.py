"""Triton's kernels without a GPU: compiled for GPUs that are not here, and launched at none."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from talon_kernels.compiling import TARGETS

KEPT = Path(__file__).with_name("compiled.json")
"""What every variant needs of every target, written by `python -m talon_kernels.compiling --kept FILE --keep`.

A kernel that has changed since, or another Triton, is compiled here, which takes its time.
"""

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
PINNED = re.findall(r"^triton==(\S+)", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)

MOST_SHARED = {
    "cuda:75": 64,
    "cuda:80": 163,
    "cuda:89": 99,
    "cuda:90": 227,
    "cuda:100": 227,
    "cuda:120": 99,
    "hip:gfx942": 64,
}

OPERATIONS = {"commit_path", "gated_unit", "greedy_walk", "rms_norm", "rotary_write", "tree_attention"}

COMPILING = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
"""The environment of a process in which Triton compiles."""

KEYS = """
import sys

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget

from talon_core.attention import PackedShape, TreeLayout
from talon_kernels.commit_path import BufferTable
from talon_kernels.commit_path.triton import commit_path_triton
from talon_kernels.greedy_walk.triton import greedy_walk_triton
from talon_kernels.rotary_write.triton import rotary_write_triton
from talon_kernels.tree_attention.triton import tree_attention_triton


class NoDevice:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


keys = {}


def note(key, fn, **_):
    keys.setdefault(fn.name, set()).add(str(key))
    return True  # neither compile nor launch


triton.runtime.driver.set_active(NoDevice())
triton.knobs.runtime.jit_cache_hook = note
rng = np.random.default_rng(0)
for prefix, nodes, capacity, room in ((0, 1, 16, 1), (1, 14, 100, 16), (16, 15, 8192, 15), (5000, 9, 70000, 11)):
    layout = TreeLayout(np.array([prefix, 3]), (np.arange(-1, nodes - 1), np.array([-1])), np.array([0, 0]))
    shape = PackedShape(2, max(nodes, room), 16, 16)
    numbers = np.zeros(shape.size, dtype=np.int32)
    shape.write(layout, numbers)
    packed = shape.views(torch.from_numpy(numbers))
    query = torch.empty(16, 8, 64, dtype=torch.bfloat16).transpose(0, 1)
    key = torch.empty((2, 2, capacity, 64), dtype=torch.bfloat16)
    options = {"scale": 0.1 * nodes, "window": prefix + 1, "softcap": 1.0 + nodes}
    pages, table = torch.empty((9, 2, 64, 64), dtype=torch.bfloat16), torch.zeros(2, capacity, dtype=torch.int32)
    tree_attention_triton(query, key, key, packed, **options)
    tree_attention_triton(query, pages, pages, packed, table=table, **options)
    known = BufferTable([key, key.clone()][: 1 + nodes % 2])
    walks = torch.zeros(2, 2 + nodes, dtype=torch.int32)
    commit_path_triton(known.slabs, known.word, packed.sequences, walks)
    commit_path_triton(known.slabs, known.word, packed.sequences, walks, table, 6)
    flat = torch.zeros(2 * nodes, dtype=torch.int32)
    places, angles = torch.zeros(2, nodes, dtype=torch.int64), torch.empty(2, nodes, 64, dtype=torch.bfloat16)
    rotated = torch.empty(nodes, 8, 64, dtype=torch.bfloat16), *torch.empty(2, nodes, 2, 64, dtype=torch.bfloat16)
    more = torch.empty((9 + capacity, 2, 64, 64), dtype=torch.bfloat16)
    rotary_write_triton(*rotated, *map(torch.clone, angles), more, more, *map(torch.clone, places), False, False)
    greedy_walk_triton(flat.long(), flat, flat, packed.sequences, torch.zeros(nodes, dtype=torch.int32), nodes)
for name, found in keys.items():
    print(name, len(found))
assert len(keys) == 5, keys
sys.exit(any(len(found) > 1 for found in keys.values()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [["--kept", str(KEPT), "--anew", "8"], pytest.param([], marks=pytest.mark.matrix)],
    ids=["kept", "compiled"],
)
def test_every_kernel_compiles_for_every_target_without_spilling(how):
    triton = pytest.importorskip("triton")
    if triton.__version__ not in PINNED:
        how = [*how, "--ends"]  # all is compiled by another Triton, which takes minutes
    command = [sys.executable, "-m", "talon_kernels.compiling", "--json", *how]
    done = subprocess.run(command, capture_output=True, env=COMPILING, timeout=3000)
    found = json.loads(done.stdout)
    usages = found["usages"]
    assert [usage for usage in usages if usage["broken"]] == [], done.stderr.decode()
    assert done.returncode == 0
    assert {usage["target"] for usage in usages} == {target.name for target in TARGETS}
    large = {usage["target"] for usage in usages if usage["variant"].endswith("batch=256")}
    assert large >= {target.name for target in TARGETS if not target.alike}  # rooms of more than 64 sequences
    assert {usage["operation"] for usage in usages} == OPERATIONS
    for usage in usages:
        assert usage["spilled"] == 0
        assert 0 < usage["registers"] <= 512
        assert usage["shared"] <= MOST_SHARED[usage["target"]] * 1024
        assert usage["held"] >= 1
    if triton.__version__ in PINNED:
        assert {usage["key"] for usage in usages} <= json.loads(KEPT.read_text(encoding="utf-8")).keys(), "see KEPT"
    sizes = {(target.name, size) for target in TARGETS for size in target.sizes}
    assert {(one["target"], one["multiprocessors"]) for one in found["occupied"]} == sizes
    assert all(1 <= one["of_ideal"] <= 1.15 for one in found["occupied"])


OLDEST = re.search(r'"triton>=([\d.]+)', (CONSTRAINTS.parent / "pyproject.toml").read_text(encoding="utf-8"))
NEEDED = "TALON_NEEDS_OTHER_TRITONS"
"""The environment variable that says that they must be there."""
NEWEST = "3.9"
MOST_SPILLED = 128
"""Bytes of a thread that the oldest may spill: it needs more registers for tree attention's largest tiles than 3.7."""
MOST_SPILLED_AT_ALL = 48
"""Bytes that some of all variants may spill with the newest."""


def compiled_by(which, *arguments, seconds):
    """What another Triton says. Each is in a folder of its own, in `tritons` of the environment or the one named."""
    assert OLDEST is not None
    wanted = OLDEST[1] if which == "oldest" else NEWEST
    if any(version.startswith(f"{wanted}.") for version in PINNED):
        pytest.skip(f"triton {wanted} is the one that is pinned")
    folder = Path(os.environ.get("TALON_TRITONS", Path(sys.prefix) / "tritons")) / wanted
    there = [one.version for one in distributions(name="triton", path=[str(folder)])]
    if not there and not os.environ.get(NEEDED):
        pytest.skip(f"no triton {wanted} in {folder}; `make other-tritons` installs it")
    assert [version.split(".")[:2] for version in there] == [wanted.split(".")]
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "talon_kernels.compiling", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, env={**COMPILING, "PYTHONPATH": path}, timeout=seconds)
    assert done.stdout, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.matrix
def test_the_newest_triton_compiles_every_variant():
    found = compiled_by("newest", seconds=7200)
    assert {usage["target"] for usage in found["usages"]} == {target.name for target in TARGETS}
    spilling = [usage for usage in found["usages"] if usage["broken"]]
    assert all(usage["broken"] == f"spills {usage['spilled']} bytes" for usage in spilling)
    assert max([usage["spilled"] for usage in spilling], default=0) <= MOST_SPILLED_AT_ALL
    assert 100 * len(spilling) <= len(found["usages"])
    assert all(1 <= one["of_ideal"] <= 1.15 for one in found["occupied"])


@pytest.mark.slow
@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_the_oldest_and_the_newest_triton_that_are_supported_compile_every_kernel(which):
    usages = compiled_by(which, "--few", seconds=600)["usages"]
    assert {usage["operation"] for usage in usages} == OPERATIONS
    assert {usage["target"] for usage in usages} == {"cuda:75", "cuda:80", "cuda:90"}
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    assert {usage["key"] for usage in usages}.isdisjoint(kept)  # another Triton has compiled these
    for usage in usages:
        assert usage["broken"] is None or usage["broken"] == f"spills {usage['spilled']} bytes"
        assert usage["spilled"] <= (MOST_SPILLED if which == "oldest" else 0)
        assert usage["shared"] <= MOST_SHARED[usage["target"]] * 1024


WRONG = """
import sys
from pathlib import Path

import attrs

from talon_kernels import compiling

compiling.OPERATIONS, compiling.TARGETS, file = ("commit_path",), compiling.TARGETS[:1], Path(sys.argv[1])
found = compiling.compile_all(1)
assert len(found) > 1 and not [one for one in found if one.broken], found
compiling.write_kept(file, [attrs.evolve(one, registers=one.registers + 1) for one in found])
kept = compiling.read_kept(file)
assert [one.registers for one in compiling.compile_all(1, kept=kept)] == [one.registers + 1 for one in found]
(broken,) = (one for one in compiling.compile_all(1, kept=kept, anew=1) if one.broken)
assert broken.broken.startswith("is kept as "), broken
"""


def test_what_is_kept_serves_until_compiling_finds_something_else(tmp_path):
    pytest.importorskip("triton")
    command = [sys.executable, "-c", WRONG, str(tmp_path / "kept.json")]
    done = subprocess.run(command, capture_output=True, text=True, env=COMPILING, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_sizes_that_change_from_round_to_round_need_no_new_variant():
    pytest.importorskip("triton")
    done = subprocess.run([sys.executable, "-c", KEYS], capture_output=True, text=True, env=COMPILING, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_where_triton_interprets_it_does_not_compile():
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "talon_kernels.compiling"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**COMPILING, "TRITON_INTERPRET": "1"}, timeout=300
    )
    assert done.returncode != 0
    assert "TRITON_INTERPRET is set" in done.stderr
