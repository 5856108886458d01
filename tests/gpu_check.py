"""What is wrong on this GPU, in one command: `make gpu`.

First what would be wrong first: the Triton kernels that touch keys and values, each against its reference, alone and
under NVIDIA's memcheck and racecheck; then the tests of all Triton kernels; then whole generations. A step that fails
stops none behind it, nor does one that hangs: it is ended when its time is over. The file that can be sent in an issue
is written after each step, so it is there whatever happens; at the end all that was found is printed on one screen.

`--smoke` goes through all of it in miniature, on the CPU where there is no GPU: it shows that the script works.
"""

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from glob import glob
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs

from talon_core.basics.paths import write_whole

ROOT = Path(__file__).resolve().parents[1]
KERNELS = str(ROOT / "tests/talon_tests/gpu_kernels.py")
SANITIZER = "compute-sanitizer"
FOUND = 86
"""The exit status with which the sanitizer says that it found something."""

LINES, COLUMNS = 24, 100
"""The most of a screen that is used."""

LIMIT = 1800.0
"""Seconds of a step before it is ended; one that works takes some minutes."""

DEVICES = Path("/dev")

TOOLKITS = ("/usr/local/cuda", "/opt/cuda")
"""Where a CUDA toolkit usually is, if neither PATH nor CUDA_HOME leads to it."""

MOST_KEPT = 15
"""Lines of a traceback that are kept."""


@attrs.frozen
class Step:
    """Something to try.

    Attributes:
        name: what it is.
        command: what runs it; the first is a program.
        environment: variables in addition.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class Outcome:
    """What a step came to.

    Attributes:
        name: of the step.
        outcome: "passed", "failed" or "not there", where its program is not on the machine.
        seconds: that it took.
        said: the last line that it printed.
        traceback: the first one that it printed, shortened; None where it passed.
    """

    name: str
    outcome: str
    seconds: float
    said: str
    traceback: str | None


def steps(smoke: bool, folder: Path) -> list[Step]:
    """What is tried, in this order.

    Args:
        smoke: in miniature.
        folder: where a step may leave files.
    """
    kernels = [sys.executable, KERNELS, *["--few"] * smoke]
    watched = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # so that each tensor is memory of its own
    tests = [sys.executable, "-m", "pytest", "-m", "not matrix", "-q", "--tb=short", "-p", "no:cacheprovider"]
    tests += ["--collect-only"] * smoke
    return [
        Step("kernels", kernels),
        *(
            Step(tool, [SANITIZER, "--tool", tool, "--error-exitcode", str(FOUND), *kernels], watched)
            for tool in ("memcheck", "racecheck")
        ),
        Step("tests of kernels", [*tests, "-k", "cuda", str(ROOT / "tests/kernels")]),
        Step("generations", [*tests, str(ROOT / "tests/integration/test_gpu.py")]),
        Step("what kernels need", [sys.executable, KERNELS, "--measure", str(folder / "measured.json")]),
    ]


def tried(step: Step, limit: float = LIMIT) -> Outcome:
    """Run a step to its end, or until its time is over; it and all that it has started are ended then.

    Args:
        step: what to try.
        limit: seconds that it may take.
    """
    program = where(step.command[0])
    if program is None:
        said = f"{step.command[0]} is neither on PATH nor in a CUDA toolkit (CUDA_HOME, {', '.join(TOOLKITS)})"
        return Outcome(step.name, "not there", 0.0, said, None)
    started = time.perf_counter()
    running = subprocess.Popen(
        [program, *step.command[1:]],
        cwd=ROOT,
        env={**os.environ, **step.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    ended = ""
    try:
        output, _ = running.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        ended = f"ended after {limit:g} s: it hangs, or needs a longer --limit"
        os.killpg(running.pid, signal.SIGKILL)
        output, _ = running.communicate()
    finally:
        if running.poll() is None:  # Ctrl-C
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    lines = [line.rstrip() for line in output.decode(errors="replace").replace(f"{ROOT}{os.sep}", "").splitlines()]
    lines = [line for line in lines if line]
    traceback = first_traceback(lines) if ended or running.returncode else None
    seconds = round(time.perf_counter() - started, 1)
    said = ended or (lines[-1].strip("= ") if lines else "")
    return Outcome(step.name, "passed" if traceback is None else "failed", seconds, said, traceback)


def where(program: str) -> str | None:
    """Its file, on PATH or in a CUDA toolkit; None if it is not there."""
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for toolkit in TOOLKITS:
        homes += [toolkit, *sorted(glob(f"{toolkit}-*"), reverse=True)]
    folders = [os.environ.get("PATH", os.defpath), *(f"{home}/bin" for home in homes)]
    return shutil.which(program, path=os.pathsep.join(folders))


def first_traceback(lines: Sequence[str]) -> str:
    """The first traceback of an output, Python's, pytest's or the sanitizer's, shortened; else its last lines."""
    begins = re.compile(r"Traceback \(most recent|_{3,} .* _{3,}$|=+ (Invalid|Error|Program hit|Race)")
    start = next((at for at, line in enumerate(lines) if begins.search(line)), max(0, len(lines) - MOST_KEPT))
    shown = list(lines[start:])
    ends = re.compile(r"(_{3,} .* _{3,}$|=+ short test summary|=+ slowest)")
    end = next((at for at, line in enumerate(shown) if at and ends.search(line)), len(shown))
    shown = shown[:end]
    if len(shown) > MOST_KEPT:
        half = MOST_KEPT // 2
        shown = [*shown[:half], "[...]", *shown[half - MOST_KEPT + 1 :]]
    return "\n".join(shown)


def environment() -> dict[str, Any]:
    """The machine, and the versions of what runs there."""
    import torch

    from talon_core.bench.environment import describe_session
    from talon_core.runtime.machine import describe_machine

    packages = {name: version(name) for name in ("torch", "triton", "transformers", "numpy")}
    found = {**describe_session(), "python": platform.python_version(), **packages}
    found |= {"platform": platform.platform(), **describe_machine()}  # the driver's version among it
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        found |= {"capability": f"{gpu.major}.{gpu.minor}", "multiprocessors": gpu.multi_processor_count}
    return found


def screen(outcomes: Sequence[Outcome], found: Mapping[str, Any], out: Path) -> str:
    """What was found, on one screen: at most `LINES` lines."""
    gpu = found["gpu"][0] if found["gpu"] else "no GPU"
    lines = [f"{gpu}, torch {found['torch']}, triton {found['triton']}, commit {str(found['commit'])[:12]}", ""]
    for one in outcomes:
        lines.append(f"{one.outcome:<10} {one.name:<18} {one.seconds:>7.1f} s  {one.said}")
    lines.append("")
    broken = next((one for one in outcomes if one.traceback), None)
    last = f"'{out}' holds all of this; send it in an issue if something failed"
    if broken is not None and broken.traceback is not None:
        left = LINES - len(lines) - 2
        shown = broken.traceback.splitlines()
        lines += [f"{broken.name}:", *(shown if len(shown) < left else ["[...]", *shown[2 - left :]])]
    return "\n".join(line[:COLUMNS] for line in [*lines, last])


def no_gpu() -> str | None:
    """Why nothing can be tried on a GPU here; None if it can."""
    import torch

    if torch.cuda.is_available():
        return None
    if not any(DEVICES.glob("nvidia[0-9]*")):
        return "there is no GPU here"
    cuda = torch.version.cuda
    built = "CPUs" if cuda is None else f"CUDA {cuda}, and nvidia-smi tells the driver's"
    return f"there is a GPU here that torch {torch.__version__} does not see: it is built for {built}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Try everything, print and write what was found, and return 1 if a step failed, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="gpu_check.py", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-report.json"), metavar="FILE", help="where it is written")
    parser.add_argument("--smoke", action="store_true", help="in miniature, on the CPU where there is no GPU")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help="what a step may take")
    options = parser.parse_args(arguments)
    missing = no_gpu()
    if missing is not None and not options.smoke:
        parser.error(f"{missing}; --smoke goes through everything on the CPU")
    interpreted = {} if missing is None else {"TRITON_INTERPRET": "1"}
    found, outcomes, status = environment(), [], 0
    with tempfile.TemporaryDirectory() as folder:
        measured = Path(folder) / "measured.json"
        try:
            write(options.out, outcomes, found, options.smoke, measured)
        except OSError as error:
            parser.error(f"'{options.out}' cannot be written: {error.strerror}; name another file with --out")
        try:
            for step in steps(options.smoke, Path(folder)):
                print(f"{step.name} ...", file=sys.stderr, flush=True)
                asked = attrs.evolve(step, environment={**step.environment, **interpreted})
                outcomes.append(tried(asked, options.limit))
                write(options.out, outcomes, found, options.smoke, measured)
        except KeyboardInterrupt:
            print("stopped; what was found so far:", file=sys.stderr)
            status = 130
    print(screen(outcomes, found, options.out))
    return status or int(any(one.outcome == "failed" for one in outcomes))


def write(out: Path, outcomes: Sequence[Outcome], found: Mapping[str, Any], smoke: bool, measured: Path) -> None:
    """Write all that was found so far.

    Args:
        out: where to; replaced as a whole.
        outcomes: of the steps so far.
        found: see `environment`.
        smoke: whether it was in miniature.
        measured: what kernels need, if that step has left it.
    """
    kernels = json.loads(measured.read_text(encoding="utf-8")) if measured.exists() else []
    report = {"environment": found, "smoke": smoke, "steps": [*map(attrs.asdict, outcomes)], "kernels": kernels}
    write_whole(out, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
