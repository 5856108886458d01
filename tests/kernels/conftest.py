"""What the tests of kernels share: outputs that start as NaN, the native library, the law of errors."""

import os
import platform
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module

import pytest
import torch

from talon_kernels import native
from talon_kernels.native import Library, build, load, unavailable
from talon_tests.emulated import CannotEmulate, Emulated, built_driver
from talon_tests.interpreter import guard_buffers, patch_once

PROCESSORS = ("here", "haswell", "x86-64", "aarch64")
"""What the kernels are compiled for: the processor here; one with AVX2, one with SSE2 alone, and an Arm, emulated."""

NEEDS: dict[str, set[str]] = {"haswell": {"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe"}, "x86-64": set()}
"""What Linux calls the abilities of this machine's processor that are not told by its kind."""

EVERYWHERE = (
    *("test_blocks", "test_skinny_linear", "test_elementwise", "test_tree_attention", "test_recorded"),
    *("test_best_tokens", "test_likeliest_tokens", "test_greedy_walk", "test_checksum"),
    *("test_drawn_tokens", "test_plans", "test_running_on", "test_chains_ahead", "test_commit_path"),
)
"""Files whose tests of the native kernels run on all of them."""

NOT_EMULATED = ("test_running_on", "test_chains_ahead", "test_commit_path")
"""Those of them that leave out the emulated one: in their C's place there is Python, or nothing."""

LONG = (
    *("test_wide_rows_fit_no_panel_and_change_nothing", "test_many_rows_are_cut_into_blocks_without_a_change_of_bits"),
    "test_any_changed_bit_and_any_two_exchanged_words_are_noticed",
)
"""Tests that run on other processors with the whole matrix alone."""

QUICK = {
    "test_recorded": (
        *("test_a_few_walked_passes_have_the_bits_of_the_pass", "test_a_few_most_likely_tokens_are_those_of_the_pass"),
        "test_steps_are_packed_as_c_reads_them",
    ),
    "test_running_on": (
        "test_passes_run_ahead_have_the_bits_of_passes_run_one_by_one",
        "test_drawn_passes_run_ahead_have_the_bits_and_tokens_of_those_run_one_by_one",
        *("test_no_pass_is_run_behind_an_end", "test_threads_change_nothing"),
        "test_a_text_whose_law_is_none_ends_where_it_would",
    ),
    "test_chains_ahead": (
        *("test_python_packs_what_c_reads", "test_rounds_run_ahead_are_those_that_are_run_one_by_one"),
        *("test_the_number_of_threads_changes_nothing", "test_the_levels_are_reached_to_the_bit"),
        *("test_drawn_texts_end_within_a_chain_that_was_run_ahead", "test_no_round_is_run_that_is_not_wanted"),
        "test_texts_that_are_drawn_otherwise_follow_each_other",
    ),
}
"""Of these files only such tests run on other processors always, and the others with the whole matrix alone."""

NEEDED = "TALON_NEEDS_EMULATOR"
"""The environment variable that says that the emulator must be there."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test of the native kernels once for each processor."""
    file, test = metafunc.module.__name__.rpartition(".")[2], metafunc.function.__name__
    if file in EVERYWHERE and "library" in metafunc.fixturenames:
        always = test in QUICK[file] if file in QUICK else test not in LONG
        marks = () if always else (pytest.mark.matrix,)
        run = [one for one in PROCESSORS[1:] if one in NEEDS or file not in NOT_EMULATED]
        others = [pytest.param(processor, marks=marks) for processor in run]
        metafunc.parametrize("library", ["here", *others], indirect=True, scope="module")


@pytest.fixture(autouse=True)
def _poisoned_outputs() -> Iterator[None]:
    """Memory that nobody wrote to holds NaN, so an element a kernel forgets is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture(scope="module")
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    """The native kernels; the test is skipped where there is no compiler, and fails where one refuses our sources.

    A parameter names another processor, whose kernels answer then wherever these are asked for.
    """
    processor = getattr(request, "param", "here")
    loaded = load()
    if loaded is None:
        why = unavailable()
        assert why is not None
        if "no C compiler" in why or "switches the native kernels off" in why or "Linux and macOS only" in why:
            pytest.skip(f"no native kernels here: {why}")
        pytest.fail(why)
    if processor == "here":
        yield loaded
        return
    other = request.getfixturevalue("emulated") if processor == "aarch64" else compiled_for(processor)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vars(native._LOADER), "_outcome", other)
        yield other


@cache
def compiled_for(processor: str) -> Library:
    """The kernels for an older processor of this machine's kind."""
    able = set(build.processor().split())
    if platform.machine() != "x86_64" or not NEEDS[processor] <= able:
        pytest.skip(f"the processor here cannot run what is compiled for {processor}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(build.MARCH, processor)
        return build.build_library(Library)


@pytest.fixture(scope="session")
def emulated() -> Iterator[Library]:
    """The kernels on an emulated Arm; without compiler and emulator these tests are skipped, in sight."""
    try:
        driver = built_driver()
    except CannotEmulate as error:
        if os.environ.get(NEEDED):
            pytest.fail(str(error))
        pytest.skip(str(error))
    kernels = Emulated(driver)
    yield kernels
    kernels.close()


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Where triton runs: on the CPU by its interpreter, with guards, and on a GPU. A process does one or the other."""
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
        guard_buffers(patch)
        # Programs that merge one row each would be most of the work; `test_tree_attention_triton.py` has all sizes.
        patch.setattr(import_module("talon_kernels.tree_attention.triton"), "merged_rows", lambda rows: 16)
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
