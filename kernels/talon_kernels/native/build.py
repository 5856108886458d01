"""Compiles the C kernels into a shared library and keeps it in the user's cache."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from talon_core.basics.paths import cache_folder
from talon_core.basics.processors import CPUINFO

T = TypeVar("T")

SOURCES = (
    *("elementwise.c", "blocks.c", "linear.c", "screen.c", "attention.c", "scores.c", "draw.c", "pass.c"),
    *("commit.c", "chains.c", "measure.c"),
)
HEADERS = ("talon.h", "parts.h", "blocks.h")

COMMON_FLAGS = ("-std=gnu11", "-O3", "-shared", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off")

FLAG_SETS = (
    ("-march=native", "-fopenmp"),
    ("-mcpu=native", "-fopenmp"),
    ("-march=native",),
    ("-mcpu=native",),
)
"""Tried in this order: Arm compilers spell the processor otherwise, Apple's clang has no OpenMP (one thread, then)."""

MARCH = "TALON_NATIVE_MARCH"
"""The environment variable that names another processor than this one to compile for, as `-march=` has it: with
`haswell` or `x86-64` a new processor shows in tests what older ones compute. A library for what this processor has not
got kills the process."""

COMPILE_SECONDS = 120.0
ANSWER_SECONDS = 20.0
"""For what takes a moment: a compiler's version, a library's first call."""

_LOADS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.talon_abi()
library.talon_lanes()
"""


class BuildError(Exception):
    """The kernels cannot be built or loaded; the text says why and what would help."""


def build_library(load: Callable[[str], T]) -> T:
    """The kernels from the cache, or else compiled and put there.

    The file's name holds a hash of everything the machine code depends on and a hash of its own content, so that a
    stale file is not found and a damaged one is not loaded (a truncated library can kill the process). It appears under
    its name only when it is complete; processes that build at the same time each put the same file there.

    Args:
        load: opens the library at a path; raises OSError if it cannot.

    Raises:
        BuildError: if it is switched off, if there is no compiler, or if the compiler or what it built fails.
    """
    switch = os.environ.get("TALON_NATIVE", "1").strip().lower()
    if switch in ("0", "false", "no", "off"):
        raise BuildError(f"TALON_NATIVE={switch} switches the native kernels off")
    if os.name != "posix":
        raise BuildError(f"the native kernels are built on Linux and macOS only, not on {platform.system()}")
    compiler = find_compiler()
    key = build_key(compiler)
    share_openmp()
    cache = cache_folder() / "native"
    for path in sorted(cache.glob(f"{key}-*.so")):
        if is_whole(path):
            with contextlib.suppress(OSError):
                return load(str(path))
        _remove(path)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        work = tempfile.TemporaryDirectory(dir=cache, prefix="build-", ignore_cleanup_errors=True)
    except OSError:
        # The mapped library outlives its file, so nothing is left behind here.
        work = tempfile.TemporaryDirectory(prefix="talon-native-", ignore_cleanup_errors=True)
    with work as folder:
        built = Path(folder) / "talon.so"
        compile_sources(compiler, built)
        check_harmless(compiler, built)
        target = cache / f"{key}-{_digest(built)}.so"
        with contextlib.suppress(OSError):
            os.replace(built, target)
            built = target
        try:
            return load(str(built))
        except OSError as error:
            raise BuildError(f"what {shlex.join(compiler)} built cannot be loaded: {error}") from error


def find_compiler() -> list[str]:
    """The C compiler's command: `$CC` if that is set, else the first of cc, gcc and clang on the PATH.

    Raises:
        BuildError: if there is none.
    """
    chosen = os.environ.get("CC", "").strip()
    if chosen:
        try:
            command = shlex.split(chosen)
        except ValueError as error:
            raise BuildError(f"CC={chosen} is no command ({error}); set it to a C compiler or unset it") from None
        if shutil.which(command[0]) is None:
            raise BuildError(f"CC={chosen} names no program; set it to a C compiler or unset it")
        return command
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name)
        if found is not None:
            return [found]
    raise BuildError("no C compiler was found (cc, gcc or clang); install one")


def build_key(compiler: list[str]) -> str:
    """A hash of what the machine code depends on: sources, flags, the compiler, the processor.

    Raises:
        BuildError: if the compiler does not run.
    """
    try:
        asked = run_quietly([*compiler, "--version"], ANSWER_SECONDS)
        asked.check_returncode()
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"the C compiler {shlex.join(compiler)} does not run: {error}") from error
    key = hashlib.sha256()
    how = repr((COMMON_FLAGS, flag_sets(), compiler)).encode()
    for part in (*(_source(name) for name in (*HEADERS, *SOURCES)), how, asked.stdout, processor().encode()):
        key.update(len(part).to_bytes(8, "big"))
        key.update(part)
    return key.hexdigest()[:24]


def flag_sets() -> tuple[tuple[str, ...], ...]:
    """The flags to try, in order: those for this processor, or for the one that `$TALON_NATIVE_MARCH` names."""
    chosen = _chosen_processor()
    return ((f"-march={chosen}", "-fopenmp"), (f"-march={chosen}",)) if chosen else FLAG_SETS


def _chosen_processor() -> str:
    return os.environ.get(MARCH, "").strip()


def processor() -> str:
    """The processor's model and abilities, as far as the system tells; a shared home may serve several machines."""
    known = [platform.system(), platform.machine(), platform.processor()]
    try:
        wanted = ("model name", "cpu family", "model", "flags", "CPU part", "CPU implementer", "Features")
        lines = CPUINFO.read_text(errors="replace").split("\n\n")[0].splitlines()
        known += [line for line in lines if line.split(":")[0].strip() in wanted]
    except OSError:
        pass
    return "\n".join(known)


def compile_sources(compiler: list[str], target: Path) -> None:
    """Compile all sources into the shared library `target`, with the first set of flags the compiler takes.

    Each source is compiled by a process of its own, on each processor one at a time. What they make stands beside the
    library.

    Raises:
        BuildError: if it takes none; the text ends with the first error of the last try.
    """
    sources = [Path(__file__).with_name(name) for name in SOURCES]
    sources.sort(key=lambda path: -path.stat().st_size)
    objects = [target.with_name(f"{path.name}.o") for path in sources]
    problem: str | None = ""
    for flags in flag_sets():
        command = [*compiler, *COMMON_FLAGS, *flags]
        alone = [one for one in command if one != "-shared"]
        each = [[*alone, "-c", str(path), "-o", str(made)] for path, made in zip(sources, objects, strict=True)]
        link = [*command, *map(str, objects), "-o", str(target), "-lm"]
        try:
            problem = _first_error_of(objects, each) or _first_error_of([target], [link])
        except (OSError, subprocess.SubprocessError) as error:
            raise BuildError(f"the C compiler {shlex.join(compiler)} does not run: {error}") from error
        if problem is None:
            return
    chosen = _chosen_processor()
    perhaps = f"; {MARCH} is '{chosen}': set it to a processor that the compiler knows, or unset it" if chosen else ""
    raise BuildError(f"{shlex.join(compiler)} cannot compile the native kernels: {problem}{perhaps}")


def _first_error_of(made: Sequence[Path], commands: Sequence[list[str]]) -> str | None:
    """Run a compiler; the first error that it says, or None if it has made each of these files."""
    found = run_together(commands, COMPILE_SECONDS)
    for place, (status, said) in sorted(found.items()):
        if status == 0 and made[place].exists():
            continue
        if status == 0:
            return "it ended without an error but wrote no file; is it a C compiler?"
        problem = next((line for line in said.splitlines() if "error" in line), " ".join(said.split())[:200])
        return problem or f"it ended with status {status} and without a word"
    return None


def run_together(commands: Sequence[list[str]], seconds: float) -> dict[int, tuple[int, str]]:
    """Run programs that read nothing, as many at a time as there are processors; what takes longest stands first.

    Where one fails, or Ctrl-C is pressed, the others end with it, and whatever they have started.

    Returns:
        By place the exit status of those that have ended by themselves, and what each has written to its standard
        error.

    Raises:
        OSError: if one cannot be started.
        subprocess.TimeoutExpired: if one takes longer.
    """
    at_once = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found: dict[int, tuple[int, str]] = {}
    running: list[tuple[int, subprocess.Popen[bytes]]] = []
    with contextlib.ExitStack() as stack:
        said = [stack.enter_context(tempfile.TemporaryFile()) for _ in commands]

        def succeeds() -> bool:
            place, process = running[-1]  # the first takes longest
            status = process.wait(seconds)
            said[place].seek(0)
            found[place] = status, said[place].read().decode(errors="replace")
            running.pop()
            return status == 0

        try:
            for place, command in enumerate(commands):
                if len(running) == at_once and not succeeds():
                    return found
                nothing = subprocess.DEVNULL
                process = subprocess.Popen(
                    command, stdin=nothing, stdout=nothing, stderr=said[place], start_new_session=True
                )
                running.append((place, process))
            while running and succeeds():
                pass
        finally:
            for _, process in running:
                _end(process)
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program that leads a session of its own, and what it has started; it may remove its files before."""
    for how, seconds in ((signal.SIGTERM, 1.0), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


def run_quietly(command: list[str], seconds: float) -> subprocess.CompletedProcess[bytes]:
    """Run a program that reads nothing and whose words are kept.

    Raises:
        OSError: if it cannot be started.
        subprocess.TimeoutExpired: if it takes longer.
    """
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False, start_new_session=True
    )


def check_harmless(compiler: list[str], library: Path) -> None:
    """Load a new library in a process of its own, because a broken one kills the process instead of failing.

    Raises:
        BuildError: if that process is killed, or does not end.
    """
    try:
        done = run_quietly([sys.executable, "-I", "-c", _LOADS, str(library)], ANSWER_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"what {shlex.join(compiler)} built cannot be tried: {error}") from error
    if done.returncode < 0:
        raise BuildError(
            f"what {shlex.join(compiler)} built kills the process that loads it (signal {-done.returncode})"
        )


def share_openmp() -> None:
    """Let the kernels use the OpenMP threads PyTorch already runs.

    Two pools would spin against each other for the same cores. The library asks for `libgomp.so.1`; once PyTorch's own
    copy is global, its symbols answer first.
    """
    import torch

    for path in _openmp_beside(Path(torch.__file__).parent):
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL | os.RTLD_NOLOAD)


def _openmp_beside(torch_folder: Path) -> Iterator[Path]:
    if sys.platform == "linux":
        for folder in (torch_folder / "lib", torch_folder.parent / "torch.libs"):
            yield from sorted(folder.glob("libgomp*.so*"))


def is_whole(path: Path) -> bool:
    """Whether a cached file still has the content its name promises."""
    try:
        return path.stem.rpartition("-")[2] == _digest(path)
    except OSError:
        return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:24]


def _source(name: str) -> bytes:
    return Path(__file__).with_name(name).read_bytes()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
