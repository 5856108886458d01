"""Building, caching and going without: whatever happens, `load()` gives working kernels or says why not."""

import ctypes
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from talon_kernels import native
from talon_kernels.native import Library, build, load, switch_off, unavailable
from talon_kernels.native.build import BuildError, build_library


@pytest.fixture
def built(library, tmp_path):
    """A library built before, so that the tests need not compile."""
    path = Path(library.path)
    if not path.exists():
        pytest.skip("the user's cache cannot be written")
    return Path(shutil.copy(path, tmp_path / "built.so"))


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TALON_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "native"


@pytest.fixture
def compiled(monkeypatch, built):
    """Counts the compilations, which take the library built before."""
    calls = []

    def compile_sources(compiler, target):
        calls.append(target)
        shutil.copy(built, target)

    monkeypatch.setattr(build, "compile_sources", compile_sources)
    return calls


def test_a_library_is_built_once_and_then_found(cache, compiled):
    first = build_library(Library)
    second = build_library(Library)
    assert first.path == second.path
    assert len(compiled) == 1
    assert [path.suffix for path in cache.iterdir()] == [".so"]  # nothing half-built stays behind


DAMAGES = [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data[:-1] + b"!"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_library_is_never_loaded_but_built_again(cache, compiled, damage):
    path = Path(build_library(Library).path)
    whole = path.read_bytes()
    path.unlink()  # it is mapped: a new file, not a change in the old one
    path.write_bytes(damage(whole))
    assert build_library(Library).path == str(path)
    assert path.read_bytes() == whole
    assert len(compiled) == 2


def test_a_library_that_does_not_load_is_built_again(cache, compiled):
    tried = []

    def fail_once(path):
        tried.append(path)
        if len(tried) == 2:
            raise OSError("not today")
        return Library(path)

    build_library(fail_once)
    build_library(fail_once)
    assert len(compiled) == 2


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch, tmp_path, compiled):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TALON_CACHE", str(tmp_path / "file"))
    assert build_library(Library).lanes in (4, 8, 16)
    assert (tmp_path / "file").read_text() == "in the way"


def test_several_may_build_at_once(cache, compiled):
    with ThreadPoolExecutor(4) as pool:
        libraries = list(pool.map(lambda _: build_library(Library), range(8)))
    assert len({library.path for library in libraries}) == 1
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("value", ["0", "off", " False "])
def test_the_environment_switches_the_kernels_off(monkeypatch, value):
    monkeypatch.setenv("TALON_NATIVE", value)
    with pytest.raises(BuildError, match=r"TALON_NATIVE=.* switches"):
        build_library(Library)


def test_a_missing_compiler_is_said_in_words(monkeypatch, tmp_path):
    monkeypatch.delenv("TALON_NATIVE", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="no C compiler was found"):
        build_library(Library)
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(BuildError, match="CC=no-such-compiler -m64 names no program"):
        build_library(Library)


def test_a_compiler_that_fails_is_said_in_words(monkeypatch, tmp_path, cache):
    monkeypatch.delenv("TALON_NATIVE", raising=False)
    false = tmp_path / "cc"
    false.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "x.c:1: error: what is this" >&2\nexit 1\n')
    false.chmod(0o755)
    monkeypatch.setenv("CC", str(false))
    with pytest.raises(BuildError, match=r"cannot compile the native kernels: x\.c:1: error: what is this"):
        build_library(Library)
    monkeypatch.setenv("TALON_NATIVE_MARCH", "abacus")
    with pytest.raises(BuildError, match=r"TALON_NATIVE_MARCH is 'abacus': set it to a processor"):
        build_library(Library)
    false.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(BuildError, match="does not run"):
        build_library(Library)


def test_another_processor_has_a_library_of_its_own(monkeypatch, cache, compiled):
    monkeypatch.delenv(build.MARCH, raising=False)
    here = build_library(Library)
    monkeypatch.setenv(build.MARCH, "haswell")
    assert build.flag_sets() == (("-march=haswell", "-fopenmp"), ("-march=haswell",))
    assert build_library(Library).path != here.path
    assert len(compiled) == 2


@pytest.mark.parametrize("number", ["model", "cpu family"])
def test_processors_of_one_name_and_the_same_abilities_have_libraries_of_their_own(monkeypatch, tmp_path, number):
    """Also plans are kept beside the library."""
    told = {"model name": "AMD EPYC", "cpu family": "25", "model": "17", "flags": "fpu avx2", "cpu MHz": "2596.134"}
    monkeypatch.setattr(build, "CPUINFO", tmp_path / "cpuinfo")
    compiler = build.find_compiler()

    def key(**other):
        lines = [f"{field}\t: {value}\n" for field, value in {**told, **other}.items()]
        (tmp_path / "cpuinfo").write_text("".join(lines))
        return build.build_key(compiler)

    assert key() == key(**{"cpu MHz": "3100.000"})
    assert key() != key(**{number: "1"})


def test_a_processor_that_the_compiler_does_not_know_is_said_in_words(library, monkeypatch, cache):
    monkeypatch.setenv(build.MARCH, "abacus")
    with pytest.raises(BuildError, match=r"cannot compile the native kernels: .*abacus"):
        build_library(Library)


CHILD = """
import os
import torch
from talon_kernels import native
from talon_kernels.native import load, unavailable
from talon_kernels.acceleration import accelerate
from talon_kernels.gated_unit import gated_unit
from talon_kernels.skinny_linear import skinny_linear

assert load() is None and "TALON_NATIVE=0" in unavailable()
x, weight = torch.ones(3, 5), torch.ones(7, 5)
assert (skinny_linear(x, weight) == 5).all()
layer = torch.nn.Linear(5, 7)
acceleration = accelerate(layer)
assert acceleration.summary() == {} and "TALON_NATIVE=0" in acceleration.reason
with acceleration:
    assert "forward" not in layer.__dict__
print("without", flush=True)

del os.environ["TALON_NATIVE"]
native._LOADER = native._Loader()
big = torch.zeros(1000, 1000)
gated_unit(big, big, "silu", backend="native")
big @ big
maps = open("/proc/self/maps").read().splitlines()
loaded = {line.split()[-1] for line in maps if "libgomp" in line}
assert len(loaded) <= 1, loaded
print("with")
"""
"""What has to be tried in a process that has loaded nothing yet: first without the kernels, then with them."""


@pytest.fixture(scope="module")
def child():
    """How far the process came, as the words that it printed, and its stderr."""
    command = [sys.executable, "-W", "ignore", "-c", CHILD]
    environment = {**os.environ, "TALON_NATIVE": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout.split(), done.stderr


def test_everything_works_in_a_process_without_native_kernels(child):
    reached, err = child
    assert "without" in reached, err


ALONE = ("elementwise.c", "blocks.c", "scores.c", "commit.c", "measure.c")
"""Sources that need no others, and take a second; the others take ten."""


def test_the_sources_compile_here(library, built, monkeypatch, tmp_path):
    """`library` was built of all of them as they are now, with this compiler: its name says so."""
    compiler = build.find_compiler()
    assert Path(library.path).name.startswith(build.build_key(compiler))
    monkeypatch.setattr(build, "SOURCES", ALONE)
    build.compile_sources(compiler, tmp_path / "talon.so")
    multiply = ctypes.CDLL(str(tmp_path / "talon.so")).talon_multiply  # of as many numbers as there are lanes
    multiply.restype, multiply.argtypes = library.multiply.restype, library.multiply.argtypes
    answers = [torch.zeros(1), torch.zeros(1)]
    assert multiply(3, 1, answers[0].data_ptr()) == library.multiply(3, 1, answers[1].data_ptr()) > 0
    assert torch.equal(*answers)


def test_a_librarys_name_hangs_on_every_file_that_is_compiled():
    folder = Path(build.__file__).parent
    listed = [*build.find_compiler(), "-MM", *(str(folder / name) for name in build.SOURCES)]
    said = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    assert {Path(name).name for name in re.findall(r"\S+\.[ch]\b", said)} == {*build.SOURCES, *build.HEADERS}
    assert {path.name for path in folder.glob("*.[ch]")} == {*build.SOURCES, *build.HEADERS}


def test_one_openmp_serves_pytorch_and_the_kernels(library, child):
    if not sys.platform.startswith("linux"):
        pytest.skip("the loaded libraries are listed on Linux only")
    reached, err = child
    assert "with" in reached, err


def test_switching_off_ends_with_its_block(library):
    with switch_off("for now"), switch_off("and again"):
        assert load() is None
        assert unavailable() == "and again"
    assert load() is library
    assert unavailable() is None


def compiler_that(tmp_path, monkeypatch, does):
    """A compiler that knows its version, and does this in the place of compiling."""
    made = tmp_path / "cc"
    made.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit 0\nwhile [ "$1" != -o ]; do shift; done\n{does}\n')
    made.chmod(0o755)
    monkeypatch.delenv("TALON_NATIVE", raising=False)
    monkeypatch.setenv("CC", str(made))


def test_a_compiler_that_is_no_command_is_said_in_words(monkeypatch):
    monkeypatch.delenv("TALON_NATIVE", raising=False)
    for chosen in ("gcc '", 'gcc "-O2'):
        monkeypatch.setenv("CC", chosen)
        with pytest.raises(
            BuildError, match=rf"^CC={re.escape(chosen)} is no command \(No closing quotation\); set it"
        ):
            build_library(Library)


def test_a_compiler_that_does_not_end_is_given_up(monkeypatch, tmp_path, cache):
    compiler_that(tmp_path, monkeypatch, "exec sleep 60")
    monkeypatch.setattr(build, "COMPILE_SECONDS", 0.2)
    with pytest.raises(BuildError, match=r"does not run: .* timed out"):
        build_library(Library)
    assert list(cache.iterdir()) == []


def test_programs_run_together_and_say_what_each_of_them_says():
    commands = [["sh", "-c", f"echo {number} >&2; sleep 0.1"] for number in range(5)]
    assert build.run_together(commands, 10) == {number: (0, f"{number}\n") for number in range(5)}


ENDS = {
    "too long": (subprocess.TimeoutExpired, "exec sleep 60"),
    "pressed": (KeyboardInterrupt, "exec sleep 60"),
    "no program": (FileNotFoundError, None),
    "fails": (None, "echo no >&2; exit 3"),
}


@pytest.mark.parametrize("stops", ENDS)
def test_what_runs_together_ends_together(monkeypatch, tmp_path, stops):
    """With whatever it has started, as a compiler starts others."""
    error, second = ENDS[stops]
    alive = tmp_path / "alive"
    first = ["sh", "-c", f"sleep 60 & echo $! > {alive}.new; mv {alive}.new {alive}; wait"]
    until_there = f"while ! [ -s {alive} ]; do sleep 0.01; done; "
    other = ["sh", "-c", until_there + second] if second is not None else ["no-such-program"]
    start, wait = subprocess.Popen.__init__, subprocess.Popen.wait

    def started(process, command, **how):
        while command == ["no-such-program"] and not alive.exists():
            time.sleep(0.01)
        start(process, command, **how)

    def waited(process, timeout=None):
        if stops == "pressed" and timeout == 30:
            while not alive.exists():
                time.sleep(0.01)
            raise KeyboardInterrupt
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "__init__", started)
    monkeypatch.setattr(subprocess.Popen, "wait", waited)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    begun = time.monotonic()
    with pytest.raises(error) if error is not None else nullcontext():
        assert build.run_together([first, other], 1.0 if stops == "too long" else 30) == {1: (3, "no\n")}
    assert time.monotonic() - begun < 20
    child = int(alive.read_text())
    while Path(f"/proc/{child}").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() - begun < 20
        time.sleep(0.01)


def test_a_compiler_reads_no_input(monkeypatch, tmp_path, cache):
    compiler_that(tmp_path, monkeypatch, "cat; echo error: it read nothing >&2; exit 1")
    with pytest.raises(BuildError, match="error: it read nothing"):
        build_library(Library)


def test_a_compiler_that_writes_nothing_is_said_in_words(monkeypatch, tmp_path, cache, caplog):
    monkeypatch.delenv("TALON_NATIVE", raising=False)
    monkeypatch.setenv("CC", "echo")
    with caplog.at_level(logging.WARNING, "talon_core"):
        assert native._Loader().outcome() == (
            "echo cannot compile the native kernels: it ended without an error but wrote no file; is it a C compiler?"
        )
    assert caplog.records[0].getMessage().endswith("wrote no file; is it a C compiler?")
    compiler_that(tmp_path, monkeypatch, "exit 3")
    with pytest.raises(BuildError, match=r"native kernels: it ended with status 3 and without a word$"):
        build_library(Library)


def test_a_library_of_something_else_is_said_in_words(monkeypatch, tmp_path, cache):
    source = tmp_path / "other.c"
    source.write_text("int other(void) { return 1; }\n")
    other = tmp_path / "other.so"
    subprocess.run([*build.find_compiler(), "-shared", "-fPIC", str(source), "-o", str(other)], check=True)
    compiler_that(tmp_path, monkeypatch, f'cp {other} "$2"')
    with pytest.raises(BuildError, match=r"built cannot be loaded: .* lacks a kernel: .*talon_abi"):
        build_library(Library)


@pytest.mark.parametrize("content", ["this is no library", ""])
def test_a_compiler_that_writes_no_library_is_said_in_words(monkeypatch, tmp_path, cache, content):
    compiler_that(tmp_path, monkeypatch, f'printf "{content}" > "$2"')
    with pytest.raises(BuildError, match="built cannot be loaded"):
        build_library(Library)


def test_a_broken_library_kills_a_child_and_not_this_process(monkeypatch, tmp_path, cache, built):
    half = tmp_path / "half.so"
    half.write_bytes(built.read_bytes()[: built.stat().st_size // 2])
    compiler_that(tmp_path, monkeypatch, f'cp {half} "$2"')
    with pytest.raises(BuildError, match=r"kills the process that loads it \(signal|cannot be loaded"):
        build_library(Library)


def test_what_kills_its_process_is_not_kept(monkeypatch, tmp_path, cache):
    compiler_that(tmp_path, monkeypatch, 'printf "x" > "$2"')
    monkeypatch.setattr(build, "_LOADS", "import os, signal; os.kill(os.getpid(), signal.SIGBUS)")
    with pytest.raises(BuildError, match=rf"kills the process that loads it \(signal {int(signal.SIGBUS)}\)"):
        build_library(Library)
    assert list(cache.iterdir()) == []


def test_going_without_is_warned_of_once_with_the_reason(monkeypatch, caplog):
    monkeypatch.setenv("TALON_NATIVE", "0")
    loader = native._Loader()
    with caplog.at_level(logging.WARNING, "talon_core"):
        assert loader.outcome() == loader.outcome() == "TALON_NATIVE=0 switches the native kernels off"
    (record,) = caplog.records
    assert record.name == "talon_core.kernels"
    assert record.getMessage().endswith("several times slower: TALON_NATIVE=0 switches the native kernels off")
