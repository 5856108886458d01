"""How many programs a multiprocessor holds: the numbers of NVIDIA's occupancy calculator, and of one's own counting."""

from types import SimpleNamespace

import pytest
import torch

from talon_kernels.compiling import TARGETS
from talon_kernels.occupancy import CDNA3, nvidia

KB = 1024
A100, L4, H100 = nvidia(2048, 164 * KB), nvidia(1536, 100 * KB), nvidia(2048, 228 * KB)


@pytest.mark.parametrize(
    ("processor", "registers", "shared", "warps", "programs"),
    [
        (H100, 32, 0, 8, 8),  # as many warps as there may be
        (L4, 32, 0, 8, 6),
        (H100, 255, 0, 8, 1),  # 256 registers of 256 threads are all that there are
        (H100, 255, 0, 4, 2),
        (H100, 168, 0, 4, 3),
        (H100, 168, 0, 8, 1),  # three warps to a scheduler, and a program has two on each
        (H100, 128, 0, 8, 2),
        (H100, 129, 0, 8, 1),  # they are given in eights
        (A100, 32, 48 * KB, 4, 3),  # and one more kilobyte each
        (A100, 32, 163 * KB, 4, 1),
        (A100, 32, 164 * KB, 4, 0),
        (L4, 64, 49 * KB, 4, 2),
        (H100, 64, 113 * KB, 4, 2),
        (H100, 64, 113 * KB + 1, 4, 1),
        (CDNA3, 128, 0, 4, 4),
        (CDNA3, 129, 0, 4, 3),
        (CDNA3, 512, 0, 4, 1),
        (CDNA3, 32, 0, 4, 8),
        (CDNA3, 32, 32 * KB, 4, 2),
        (CDNA3, 32, 65 * KB, 4, 0),
    ],
)
def test_programs_of_a_multiprocessor(processor, registers, shared, warps, programs):
    assert processor.holds(registers, shared, warps) == programs


def test_a_program_of_all_the_shared_memory_that_one_may_have_is_held_by_each_target():
    for target in TARGETS:
        assert target.processor.holds(32, target.shared, 4) >= 1
        assert target.processor.holds(32, target.processor.shared + 1, 4) == 0


class Kernel:
    """A compiled kernel whose registers are known when it is loaded."""

    metadata = SimpleNamespace(shared=30 * KB)

    @property
    def run(self):
        self.n_regs = 168
        return None


def test_work_is_divided_among_what_the_gpu_holds_at_a_time():
    triton = pytest.importorskip("talon_kernels.tree_attention.triton")
    asked = []

    def compiled():
        asked.append(1)
        return Kernel()

    gpu = triton._Gpu("hopper", 132, H100)
    for _ in range(2):
        assert gpu.programs("this", 4, compiled) == 3 * 132
    assert len(asked) == 1
    assert gpu.programs("another", 8, compiled) == 132
    assert (
        triton._Gpu("other", 10, nvidia(1536, 8 * KB)).programs("this", 4, compiled) == 10
    )  # none fits: it will raise


@pytest.mark.parametrize(
    ("major", "minor", "kind"),
    [(7, 5, "turing"), (7, 0, "other"), (8, 0, "other"), (9, 0, "hopper"), (10, 0, "other"), (12, 0, "other")],
)
def test_the_kind_of_a_gpu_follows_its_architecture(monkeypatch, major, minor, kind):
    kernels = pytest.importorskip("talon_kernels.tree_attention.triton")
    told = SimpleNamespace(multi_processor_count=40, major=major, minor=minor)
    told.max_threads_per_multi_processor, told.shared_memory_per_multiprocessor = 1024, 64 * KB
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: told)
    assert kernels._gpu.__wrapped__(torch.device("cuda:0")).kind == kind
    compiled = {target.kind for target in TARGETS if str(target.arch).startswith(f"{major}{minor}")}
    assert kind in compiled or (major, minor) == (7, 0)  # which no test compiles for


@pytest.mark.parametrize(
    ("architecture", "programs"), [("gfx942:sramecc+:xnack-", 4 * 304), ("gfx1100", 304), ("gfx950:xnack-", 304)]
)
def test_of_a_gpu_that_nothing_is_known_of_each_multiprocessor_gets_one_program(monkeypatch, architecture, programs):
    kernels = pytest.importorskip("talon_kernels.tree_attention.triton")
    told = SimpleNamespace(multi_processor_count=304, gcnArchName=architecture)
    monkeypatch.setattr(torch.version, "hip", "6.3")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: told)
    gpu = kernels._gpu.__wrapped__(torch.device("cuda:0"))
    compiled = SimpleNamespace(run=None, n_regs=128, metadata=SimpleNamespace(shared=0))
    assert gpu.kind == "amd"
    assert gpu.programs("attend", 4, lambda: compiled) == programs
