"""How much memory there is, and as how many rows of keys and values that counts."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from talon_core import load
from talon_core.basics import memory
from talon_core.basics.memory import device_memory, host_memory
from talon_tests.tiny_models import ARCHITECTURES, tiny_model

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes control groups, of which this process says that it is in the given one."""
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "OWN_GROUPS", tmp_path / "own")

    def make(own: str, limits: dict[str, str]) -> None:
        (tmp_path / "own").write_text(own)
        for file, limit in limits.items():
            path = tmp_path / "cgroup" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(limit)

    return make


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        ("0::/\n", {"memory.max": "4096\n"}, 4096),
        ("0::/a/b\n", {"memory.max": "max\n", "a/memory.max": "8192\n", "a/b/memory.max": "max\n"}, 8192),
        ("0::/a/b\n", {"a/memory.max": "8192\n", "a/b/memory.max": "4096\n"}, 4096),
        ("0::/a\n", {"memory.max": "max\n"}, MACHINE),
        ("5:cpu:/x\n4:memory:/x\n", {"memory/x/memory.limit_in_bytes": "4096\n"}, 4096),
        ("4:cpu,memory:/x\n", {"memory/memory.limit_in_bytes": str(2**63 - 4096)}, MACHINE),
        ("5:cpu:/x\n", {"memory/x/memory.limit_in_bytes": "4096\n"}, MACHINE),
        ("nonsense\n", {"memory.max": "4096\n"}, MACHINE),
        ("0::/\n", {"memory.max": "0\n"}, MACHINE),
        ("0::/\n", {"memory.max": "\u00b2"}, MACHINE),
    ],
)
def test_the_memory_of_the_host_is_the_containers_where_that_has_less(
    groups: Any, own: str, limits: dict[str, str], expected: int
) -> None:
    groups(own, limits)
    assert host_memory() == expected
    assert device_memory(torch.device("cpu")) == expected


def test_without_control_groups_it_is_the_machines(groups: Any) -> None:
    assert host_memory() == MACHINE


def test_a_device_that_nobody_knows_has_no_bound() -> None:
    assert device_memory(torch.device("meta")) is None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_that_memory_would_hold_are_counted_by_what_the_cache_holds(
    monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    """Not by what its configuration says: DeepSeek keeps less, and some configurations say what their model ignores."""
    target: Any = load(tiny_model(architecture), policy=None).target
    monkeypatch.setattr("talon_core.runtime.row_sizes.device_memory", lambda device: 10**6)
    with target.session():
        target.open(0, 64)
        target.read({0: np.arange(3, 40)})
        each, rest = divmod(target.own_executor().cache.nbytes, target.rows({0: 64}))
        target.close(0)
    assert not rest
    assert target.most_rows == 10**6 // each


def test_a_text_that_memory_cannot_hold_is_refused_and_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    monkeypatch.setattr("talon_core.runtime.row_sizes.device_memory", lambda device: 100 * 768)
    decoder = load(model, policy=None)
    with pytest.raises(ValueError, match="rows of keys and values more than the memory here would hold at best"):
        decoder.generate(np.arange(3, 20), max_new_tokens=90)
    prompts = [np.arange(3, 5 + length) for length in range(6)]
    together = decoder.generate(prompts, max_new_tokens=20)
    assert decoder.target.rows(dict.fromkeys(range(4), 30)) > 100  # no more than three at a time
    assert max(one.sequences for result in together for one in result.rounds) == 3
    assert [one.token_ids for one in together] == [
        load(model, policy=None).generate(prompt, max_new_tokens=20).token_ids for prompt in prompts
    ]


def test_a_process_that_keeps_what_it_frees_has_large_arrays_sooner() -> None:
    """In a process of its own, where page faults are counted, and not seconds."""
    code = """
import ctypes, resource
import numpy as np
from talon_core.basics.memory import MMAP_THRESHOLD, TRIM_THRESHOLD, keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(200):
        held = [np.ones(49152) for _ in range(4)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

try:
    for option in MMAP_THRESHOLD, TRIM_THRESHOLD:  # what glibc begins with
        ctypes.CDLL(None).mallopt(option, 128 << 10)
except AttributeError:
    pass
before = faults()
kept = keep_freed_memory()
faults()
print(int(kept), before, faults())
"""
    kept, before, after = map(int, subprocess.check_output([sys.executable, "-c", code]).split())
    if not kept:
        pytest.skip("the C library is not glibc")
    assert before > 100 * 200
    assert after < 100
