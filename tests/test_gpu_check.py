"""`make gpu` on a machine where nobody may try it: its order, its screen and its file, whatever a step comes to."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

import gpu_check
from gpu_check import COLUMNS, LINES, MOST_KEPT, Outcome, Step
from talon_tests.interpreter import guard_buffers, patch_once

PASSES = "#!/bin/sh\necho '========= ERROR SUMMARY: 0 errors'\n"
FINDS = """#!/bin/sh
echo 'attend bfloat16, heads of 64, batch 1'
echo '========= Invalid __global__ write of size 16 bytes'
echo '=========     at _move+0x500'
echo '========= ERROR SUMMARY: 1 error'
exit 86
"""
RAISES = [
    sys.executable,
    "-S",
    "-c",
    "def deep(n):\n  return 1 // 0 if n == 0 else deep(n - 1)\nprint('begins')\ndeep(3)",
]


@pytest.fixture
def sanitizer(tmp_path, monkeypatch):
    """Puts a program of this text in the place of NVIDIA's, or none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu_check, "TOOLKITS", (str(tmp_path / "cuda"),))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)

    def put(text, folder="."):
        if text is not None:
            file = tmp_path / folder / gpu_check.SANITIZER
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755)

    return put


@pytest.fixture
def checked(tmp_path, monkeypatch, capsys):
    """Runs the check with these steps, and returns its status, its screen and its report."""

    def run(*steps, limit="60"):
        monkeypatch.setattr(gpu_check, "steps", lambda smoke, folder: [*steps])
        out = tmp_path / "report.json"
        status = gpu_check.main(["--smoke", "--out", str(out), "--limit", limit])
        return status, capsys.readouterr().out.splitlines(), json.loads(out.read_text())

    return run


def test_what_would_be_wrong_first_comes_first():
    steps = gpu_check.steps(False, Path("there"))
    assert [step.name for step in steps] == [
        *("kernels", "memcheck", "racecheck", "tests of kernels", "generations", "what kernels need"),
    ]
    kernels, memcheck, racecheck, tests, generations, _ = steps
    for tool, step in (("memcheck", memcheck), ("racecheck", racecheck)):
        assert step.command == ["compute-sanitizer", "--tool", tool, "--error-exitcode", "86", *kernels.command]
        assert step.environment == {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    places = [Path(word) for step in steps for word in step.command if word.startswith(str(gpu_check.ROOT / "tests"))]
    assert len(places) == 6
    assert all(place.exists() for place in places)
    assert tests.command[-3:] == ["-k", "cuda", str(gpu_check.ROOT / "tests/kernels")]
    assert generations.command[-1].endswith("integration/test_gpu.py")


@pytest.mark.parametrize(
    ("program", "outcome", "said", "traceback"),
    [
        (PASSES, "passed", "ERROR SUMMARY: 0 errors", None),
        (FINDS, "failed", "ERROR SUMMARY: 1 error", "========= Invalid __global__ write of size 16 bytes"),
        (None, "not there", "compute-sanitizer is neither on PATH nor in a CUDA toolkit (CUDA_HOME, {cuda})", None),
    ],
)
def test_the_sanitizer_passes_finds_something_or_is_not_there(sanitizer, tmp_path, program, outcome, said, traceback):
    sanitizer(program)
    found = gpu_check.tried(gpu_check.steps(True, Path("there"))[1])
    assert (found.outcome, found.said) == (outcome, said.format(cuda=tmp_path / "cuda"))
    assert (found.traceback and found.traceback.splitlines()[0]) == traceback


@pytest.mark.parametrize("folder", ["own/bin", "cuda/bin", "cuda-13.0/bin"])
def test_the_sanitizer_of_a_toolkit_that_is_not_on_the_path_is_found(sanitizer, tmp_path, monkeypatch, folder):
    sanitizer(PASSES, folder)
    assert (gpu_check.where(gpu_check.SANITIZER) is None) == (folder == "own/bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "own"))
    assert gpu_check.where(gpu_check.SANITIZER) == str(tmp_path / folder / gpu_check.SANITIZER)


def test_a_step_that_hangs_is_ended_with_all_that_it_has_started(checked):
    hangs = "echo begins; sleep 600 & wait"  # it holds the output open
    status, screen, report = checked(Step("hangs", ["sh", "-c", hangs]), Step("passes", ["true"]), limit="0.5")
    assert status == 1
    assert screen[2].split()[:2] == ["failed", "hangs"]
    assert "ended after 0.5 s: it hangs, or needs a longer --limit" in screen[2]
    assert [one["outcome"] for one in report["steps"]] == ["failed", "passed"]
    assert report["steps"][0]["traceback"] == "begins"
    assert report["steps"][0]["seconds"] < 60


def test_ctrl_c_leaves_what_was_found_so_far(checked, monkeypatch):
    tried = gpu_check.tried

    def stopped(step, limit):
        if step.name == "third":
            raise KeyboardInterrupt
        return tried(step, limit)

    monkeypatch.setattr(gpu_check, "tried", stopped)
    status, screen, report = checked(Step("first", ["true"]), Step("second", ["false"]), Step("third", ["true"]))
    assert status == 130
    assert [one["outcome"] for one in report["steps"]] == ["passed", "failed"]
    assert [line.split()[0] for line in screen[2:4]] == ["passed", "failed"]


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_tried(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu_check, "tried", lambda *given: pytest.fail("tried"))
    with pytest.raises(SystemExit, match="2"):
        gpu_check.main(["--smoke", "--out", str(tmp_path / "not-there" / "report.json")])
    said = capsys.readouterr().err
    assert "report.json' cannot be written: No such file or directory; name another file with --out" in said


def test_a_gpu_that_torch_does_not_see_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(gpu_check, "DEVICES", tmp_path)
    assert gpu_check.no_gpu() == "there is no GPU here"
    (tmp_path / "nvidia0").touch()
    unseen = f"there is a GPU here that torch {torch.__version__} does not see: it is built for"
    assert gpu_check.no_gpu() == f"{unseen} CPUs"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert gpu_check.no_gpu() == f"{unseen} CUDA 13.0, and nvidia-smi tells the driver's"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gpu_check.no_gpu() is None


def test_a_step_that_fails_stops_none_behind_it(checked):
    fails, passes = Step("first", RAISES), Step("second", ["sh", "-c", "echo $WHAT is well"], {"WHAT": "all"})
    status, screen, report = checked(fails, Step("third", ["not-there-at-all"]), passes)
    assert status == 1
    assert [one["outcome"] for one in report["steps"]] == ["failed", "not there", "passed"]
    assert report["steps"][0]["traceback"].splitlines()[0] == "Traceback (most recent call last):"
    assert report["steps"][2]["said"] == "all is well"
    assert [line.split()[0] for line in screen[2:5]] == ["failed", "not", "passed"]
    assert "ZeroDivisionError" in "".join(screen)
    assert checked(passes)[0] == checked(Step("third", ["not-there-at-all"]))[0] == 0


def test_the_file_says_where_it_was_made_and_what_kernels_need(checked, monkeypatch):
    status, _, report = checked(Step("passes", ["true"]))
    assert status == 0
    assert {"started", "commit", "python", "torch", "triton", "cuda", "gpu", "platform"} <= report["environment"].keys()
    assert report["smoke"] is True
    assert report["kernels"] == []


def test_what_is_printed_fits_one_screen():
    traceback = gpu_check.first_traceback([f"line {n} {'x' * 200}" for n in range(100)])
    assert len(traceback.splitlines()) == MOST_KEPT
    steps = gpu_check.steps(False, Path("there"))
    found = {"gpu": [], "torch": "2", "triton": "3", "commit": None}
    for count in range(len(steps) + 1):
        broken = [traceback if at < count else None for at in range(len(steps))]
        outcomes = [Outcome(step.name, "failed", 1.0, "y" * 200, own) for step, own in zip(steps, broken, strict=True)]
        lines = gpu_check.screen(outcomes, found, Path("report.json")).splitlines()
        assert len(lines) <= LINES
        assert all(len(line) <= COLUMNS for line in lines)
        assert lines[-1] == "'report.json' holds all of this; send it in an issue if something failed"


def test_of_a_traceback_begin_and_end_are_kept():
    pytests = ["collected 9", "____ test_one ____", *map(str, range(40)), "E  it", "____ test_two ____", "other"]
    found = gpu_check.first_traceback(pytests).splitlines()
    assert (found[0], found[-1], len(found)) == ("____ test_one ____", "E  it", MOST_KEPT)


def test_without_a_gpu_it_says_so(capsys):
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(SystemExit, match="2"):
        gpu_check.main([])
    assert "there is no GPU here; --smoke goes through everything on the CPU" in capsys.readouterr().err


def test_the_kernels_that_are_launched_compute_what_their_references_do(monkeypatch):
    """Some of them, by the interpreter and between guards."""
    pytest.importorskip("triton")
    if torch.cuda.is_available() and not os.environ.get("TRITON_INTERPRET"):
        pytest.skip("triton compiles in this process")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    from talon_tests import gpu_kernels

    patch_once(monkeypatch)
    guard_buffers(monkeypatch)
    for case in gpu_kernels.cases(few=True):
        case.run(torch.device("cpu"))
    assert len({case.name for case in gpu_kernels.cases(few=False)}) == 26
    commit = gpu_kernels.commit_path

    def moves_nothing(*given, backend):
        if backend == "reference":
            commit(*given, backend=backend)

    monkeypatch.setattr(gpu_kernels, "commit_path", moves_nothing)
    with pytest.raises(AssertionError, match="other rows moved than in the reference"):
        gpu_kernels.Committing(torch.bfloat16).run(torch.device("cpu"))


@pytest.mark.slow
@pytest.mark.matrix
def test_in_miniature_it_goes_through_everything(sanitizer, tmp_path, capsys):
    sanitizer(PASSES)
    assert gpu_check.main(["--smoke", "--out", str(tmp_path / "report.json")]) == 0
    outcomes = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:8]]
    assert outcomes == ["passed"] * 6
