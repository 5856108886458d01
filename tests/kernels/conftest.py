"""What the tests of kernels share: outputs that start as NaN, the native library, the law of errors."""

import os
from collections.abc import Callable, Iterator

import pytest
import torch

from talon_kernels.native import Library, load, unavailable
from talon_tests.interpreter import patch_once


@pytest.fixture(autouse=True)
def _poisoned_outputs() -> Iterator[None]:
    """Memory that nobody wrote to holds NaN, so an element a kernel forgets is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture(scope="session")
def library() -> Library:
    """The native kernels; the test is skipped where there is no compiler, and fails where one refuses our sources."""
    loaded = load()
    if loaded is None:
        why = unavailable()
        assert why is not None
        if "no C compiler" in why or "switches the native kernels off" in why or "Linux and macOS only" in why:
            pytest.skip(f"no native kernels here: {why}")
        pytest.fail(why)
    return loaded


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Where triton runs: on the CPU by its interpreter, and on a GPU. One process does one or the other."""
    pytest.importorskip("triton")
    gpu = torch.cuda.is_available()
    if request.param == "cuda":
        if not gpu or os.environ.get("TRITON_INTERPRET"):
            pytest.skip("TRITON_INTERPRET is set" if gpu else "no GPU here")
        yield torch.device("cuda")
        return
    if gpu and not os.environ.get("TRITON_INTERPRET"):
        pytest.skip("triton compiles in this process; set TRITON_INTERPRET=1 to test its interpreter")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch_once(patch)
        yield torch.device("cpu")


@pytest.fixture(scope="session")
def check_error() -> Callable[..., None]:
    """The law of errors, for results of one computation done three ways."""

    def check(got: torch.Tensor, low: torch.Tensor, truth: torch.Tensor, size: torch.Tensor | None = None) -> None:
        """Twice the error of the float32 reference `low`, plus one rounding step of what was added up, `size`."""
        assert got.shape == truth.shape
        assert got.dtype == low.dtype == torch.float32
        assert truth.dtype == torch.float64
        if not got.numel():
            return
        step = torch.finfo(torch.float32).eps * (truth if size is None else size).abs().max().item()
        allowed = 2 * (low.double() - truth).abs().max().item() + step
        assert (got.double() - truth).abs().max().item() <= allowed

    return check


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets PyTorch's number of threads, for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
