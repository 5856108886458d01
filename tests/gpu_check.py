"""What is wrong on this GPU, in one command: `make gpu`.

First what would be wrong first: the Triton kernels that touch keys and values, each against its reference, alone and
under NVIDIA's memcheck and racecheck; then the tests of all Triton kernels; then whole generations. A step that fails
stops none behind it. What was found is printed on one screen and written to a file that can be sent in an issue.

`--smoke` goes through all of it in miniature, on the CPU where there is no GPU: it shows that the script works.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs

ROOT = Path(__file__).resolve().parents[1]
KERNELS = str(ROOT / "tests/talon_tests/gpu_kernels.py")
SANITIZER = "compute-sanitizer"
FOUND = 86
"""The exit status with which the sanitizer says that it found something."""

LINES, COLUMNS = 24, 100
"""The most of a screen that is used."""

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


def tried(step: Step) -> Outcome:
    """Run a step to its end."""
    program = shutil.which(step.command[0])
    if program is None:
        return Outcome(step.name, "not there", 0.0, f"{step.command[0]} is not on PATH", None)
    started = time.perf_counter()
    environment = {**os.environ, **step.environment}
    done = subprocess.run(
        [program, *step.command[1:]], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said = done.stdout.decode(errors="replace").replace(str(ROOT) + os.sep, "")
    lines = [line.rstrip() for line in said.splitlines() if line.strip()]
    outcome = "failed" if done.returncode else "passed"
    seconds = round(time.perf_counter() - started, 1)
    last = lines[-1].strip("= ") if lines else ""
    return Outcome(step.name, outcome, seconds, last, first_traceback(lines) if done.returncode else None)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Try everything, print and write what was found, and return 1 if a step failed."""
    parser = argparse.ArgumentParser(prog="gpu_check.py", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-report.json"), metavar="FILE", help="where it is written")
    parser.add_argument("--smoke", action="store_true", help="in miniature, on the CPU where there is no GPU")
    options = parser.parse_args(arguments)
    here = any(Path("/dev").glob("nvidia[0-9]*"))
    if not here and not options.smoke:
        parser.error("there is no GPU here; --smoke goes through everything on the CPU")
    interpreted = {} if here else {"TRITON_INTERPRET": "1"}
    with tempfile.TemporaryDirectory() as folder:
        outcomes = []
        for step in steps(options.smoke, Path(folder)):
            print(f"{step.name} ...", file=sys.stderr, flush=True)
            outcomes.append(tried(attrs.evolve(step, environment={**step.environment, **interpreted})))
        measured = Path(folder) / "measured.json"
        kernels = json.loads(measured.read_text(encoding="utf-8")) if measured.exists() else []
    found = environment()
    report = {"environment": found, "smoke": options.smoke, "steps": [*map(attrs.asdict, outcomes)], "kernels": kernels}
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(screen(outcomes, found, options.out))
    return int(any(one.outcome == "failed" for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
