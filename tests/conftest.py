"""Options and fixtures of the whole suite."""

import atexit
import gc
import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from talon_core.decoding.decoder import Decoder

if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/kfd").exists():
    # Without a GPU, Triton's kernels are tested by its interpreter; it is chosen when triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

OWN_PROMPTS = Path(__file__).parent / "prompts.jsonl"


@pytest.fixture(scope="session", autouse=True)
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Certificates of the user's own do not count in tests, and tests leave none behind."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TALON_DATA", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def kept_answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What drafters of texts have said along traces is kept apart from the user's own; models are the user's."""
    from talon_core.trace import answers

    folder = tmp_path_factory.mktemp("answers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "cache_folder", lambda: folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def found_plugins() -> Iterator[None]:
    """Plugins are looked for anew only where a folder of `sys.path` has changed: most decoders look for them."""
    from talon_core.plugins import registry

    known: dict[Any, Any] = {}
    find = registry._installed_plugins

    def found() -> Any:
        folders = [path for path in sys.path if os.path.isdir(path)]
        question = (registry.entry_points, *sys.path, *(os.stat(path).st_mtime_ns for path in folders))
        if question not in known:
            known[question] = find()
        return known[question]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_installed_plugins", found)
        yield


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    """A test leaves torch as many threads as it had: with more than a worker's share all that follow are slow."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else None
    yield
    if torch is not None and torch.get_num_threads() != before:
        left = torch.get_num_threads()
        torch.set_num_threads(before)
        pytest.fail(f"the test leaves {left} threads to torch, which had {before}")


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets PyTorch's number of threads, for one test."""
    import torch

    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[Callable[[str], str]]:
    """The address of a process that starts others as forks of itself, by what it has imported.

    See `talon_tests/forked_python.py`. Workers share those that the process which started them holds.
    """
    with ExitStack() as own:

        @cache
        def address(what: str) -> str:
            return os.environ.get(SERVERS[what]) or own.enter_context(serving(what))

        yield address


@pytest.fixture(scope="session")
def forked_python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A command that takes `-c` or `-m` as `python` does, without its imports."""
    if not hasattr(os, "fork"):
        return sys.executable
    address, command = request.getfixturevalue("fork_server")("all"), tmp_path_factory.mktemp("bin") / "python"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{FORKED_PYTHON}" ask "{address}" "$@"\n')
    command.chmod(0o700)
    return str(command)


SERVERS = {"all": "TALON_FORK_SERVER", "cli": "TALON_CLI_FORK_SERVER"}
"""The environment variables with the addresses of the servers that workers share."""

FORKED_PYTHON = Path(__file__).parent / "talon_tests" / "forked_python.py"


@contextmanager
def serving(what: str) -> Iterator[str]:
    """A server, which imports what it has to when it is first asked; its address."""
    with tempfile.TemporaryDirectory(prefix="talon-") as folder:  # the path of a socket may have a hundred characters
        address = f"{folder}/socket"
        command = [sys.executable, "-P", str(FORKED_PYTHON), "serve", address, what]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield address


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Callable[..., tuple[int, str, str]]:
    """Runs a script as `python -c` does; gives the exit status (negative: killed by a signal), stdout and stderr."""

    from talon_tests import forked_python

    def run(script: str, *arguments: str, redirect: str = "", fresh: bool = False) -> tuple[int, str, str]:
        """Without `fresh` it is a fork that has imported the command line already, which takes a few milliseconds.

        Args:
            script: what is run.
            arguments: what follows it on the command line.
            redirect: redirections of the streams as a shell writes them: `2>&-`, `>/dev/full`.
            fresh: whether the interpreter's start, or what is imported, is part of what is tested.
        """
        if fresh or not hasattr(os, "fork"):
            shell = ["sh", "-c", f'exec "$@" {redirect}', "sh"] if redirect else []
            command = [*shell, sys.executable, "-c", script, *arguments]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
            )
            return done.returncode, done.stdout, done.stderr
        return forked_python.run(request.getfixturevalue("fork_server")("cli"), script, *arguments, redirect=redirect)

    return run


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where it is ignored by whoever started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


LIAR = """
import attrs
import numpy as np

from talon_core import AcceptanceRule, Accepted, Growth, TreePolicy, hookimpl
from talon_core.rule import descend


@attrs.frozen
class TakesAll(AcceptanceRule):
    name = "takes-all"
    exact_for = frozenset({"any"})  # it is not
    share: float = 1.0

    def walk(self, tree, laws, choices):
        path = tree.path(int(tree.depths.argmax()))
        for at, node in enumerate(path[1:].tolist(), start=1):
            if laws.ends(int(tree.tokens[node])):
                return Accepted(path[:at], int(tree.tokens[node]))
        return Accepted(path, laws.draw(int(path[-1]), choices))


@attrs.frozen
class Honest(AcceptanceRule):
    name = "honest"
    exact_for = frozenset({"any"})

    def walk(self, tree, laws, choices):
        return descend(tree, laws, lambda node: laws.draw(node, choices))


@attrs.frozen
class Draws(TreePolicy):
    name = "draws"
    children = "sampled-chain"
    default_rule = "rrs"
    budget: int = 2
    often: float = 0.5

    def grow(self, tree, candidates, choices):
        wanted = len(tree) < self.budget and choices.coin(self.often)
        return Growth([], drawn={0: candidates.draw(choices, 0)} if wanted else {})


@attrs.frozen
class Fixed(TreePolicy):
    name = "fixed"
    budget: int = 3

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(self.budget - len(tree)))


@attrs.frozen
class Crashes(Fixed):
    name = "crashes"

    def grow(self, tree, candidates, choices):
        raise KeyError("nothing here")


@hookimpl
def talon_policies():
    return [Draws, Fixed, Crashes]


@hookimpl
def talon_rules():
    return [TakesAll, Honest]
"""


@pytest.fixture
def liar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An installed plugin of somebody else's, as a module: a package with a rule that is not what it says."""
    package, record = tmp_path / "liar", tmp_path / "liar-1.0.dist-info"
    package.mkdir()
    (package / "__init__.py").write_text(LIAR)
    (package / "helper.py").write_text("FACTOR = 2\n")
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: liar\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text("[talon]\nliar = liar\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TALON_DATA", str(tmp_path / "data"))
    from talon_core.basics.loaded import noting_imports

    with noting_imports():  # as the registry does
        module = importlib.import_module("liar")
    yield module
    for name in [name for name in sys.modules if name.partition(".")[0] == "liar"]:
        del sys.modules[name]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--prompts` brings prompt sets in, `--matrix` every combination, `--talon-policy` a policy for the benchmarks."""
    parser.addoption("--prompts", metavar="DIR", help="also decode the prompts of every *.jsonl file in DIR")
    parser.addoption("--prompts-limit", type=int, default=0, metavar="N", help="only the first N prompts of each file")
    parser.addoption("--matrix", action="store_true", help="run the whole matrix of combinations")
    parser.addoption(
        "--talon-policy",
        metavar="SPEC",
        action="append",
        default=[],
        help="a tree policy that tests/benchmarks times beside the built-in ones, as my-policy:depth=4; repeatable",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without `--matrix`, tests marked so are left out; `LeftOut` says how many.

    Of several workers one begins with what runs the embedded models, and goes on with what else is slow; the others
    begin with the rest and take from the end of what is left. So none ends late, and two seldom run a large model at a
    time: each of its passes reads all weights, and together they would wait for the memory.
    """
    if not config.getoption("--matrix"):
        left_out = [item for item in items if "matrix" in item.keywords]
        items[:] = [item for item in items if "matrix" not in item.keywords]
        config.hook.pytest_deselected(items=left_out)
        getattr(config, "workeroutput", {})["left_out"] = len(left_out)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: ("models" not in item.keywords, "slow" not in item.keywords))


SELDOM = (50_000, 20, 50)
"""The garbage collector's thresholds: most of what it looks through are modules, which stay."""

SLOW = 5.0
"""Seconds; what takes longer is told when it is done, whatever its marks are."""


class SlowTests:
    """Says while tests run which slow ones begin, and what they took: a run is never silent for long."""

    def __init__(self, reporter: Any) -> None:
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup" and report.passed and "slow" in report.keywords:
            self._reporter.write_line(f"slow: {report.nodeid} begins")
        if report.duration >= SLOW:
            self._reporter.write_line(f"slow: {report.nodeid} took {report.duration:.0f} s ({report.when})")


class LeftOut:
    """Says at the end of a run of several workers, of which each has collected the same, what these have left out."""

    def __init__(self) -> None:
        self._tests = 0

    def pytest_testnodedown(self, node: Any) -> None:
        self._tests = max(self._tests, getattr(node, "workeroutput", {}).get("left_out", 0))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._tests:
            terminalreporter.write_line(f"{self._tests} tests of the whole matrix were left out: run with --matrix")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Whoever brings a policy for the benchmarks wants them timed, which `addopts` switches off."""
    if config.getoption("--talon-policy"):
        config.option.benchmark_disable = False


@pytest.hookimpl(trylast=True)  # when there is a reporter
def pytest_configure(config: pytest.Config) -> None:
    """Workers report to the process that started them; that one tells."""
    gc.set_threshold(*SELDOM)
    _without_deadlines()
    for spec in config.getoption("--talon-policy"):
        _check_policy(spec)
    if hasattr(config, "workerinput"):
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        config.pluginmanager.register(SlowTests(reporter), "slow-tests")
    if not config.getoption("numprocesses", None):
        return
    config.pluginmanager.register(LeftOut(), "left-out")
    if hasattr(os, "fork"):
        shared = ExitStack()
        config.add_cleanup(shared.close)
        for what, variable in SERVERS.items():
            os.environ[variable] = shared.enter_context(serving(what))
            shared.callback(os.environ.pop, variable)


def pytest_collection_finish() -> None:
    """The modules that are imported by now stay: nobody need look through them for garbage."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    """What is left is looked through once, and not ten times by pytest; when Python ends it is all taken apart."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)


def _without_deadlines() -> None:
    """Hypothesis takes no example for a failure because it was slow: a machine that is busy is slow at any time."""
    from hypothesis import settings

    settings.register_profile("patient", settings.get_profile(settings.get_current_profile_name()), deadline=None)
    settings.load_profile("patient")


def _check_policy(spec: str) -> None:
    from talon_core.testing.benchmarks import made_policy

    try:
        made_policy(spec)
    except (LookupError, ValueError) as error:
        raise pytest.UsageError(f"--talon-policy {spec}: {error}") from error


def read_prompts(file: Path, limit: int = 0) -> list[str]:
    """The first turns of a file in Spec-Bench form: one JSON object a line, with `turns`."""
    prompts = [json.loads(line)["turns"][0] for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return prompts[:limit] if limit else prompts


@pytest.fixture
def unshrunk() -> Iterator[None]:
    """Hypothesis takes the first failure as it comes: what is tested is that there is one, not how small it gets."""
    from hypothesis import Phase, settings

    before = settings.get_current_profile_name()
    settings.register_profile("unshrunk", phases=[Phase.generate], derandomize=True)
    settings.load_profile("unshrunk")
    yield
    settings.load_profile(before)


@pytest.fixture(scope="session")
def prompts(request: pytest.FixtureRequest) -> list[str]:
    """The suite's own prompts, and those of `--prompts DIR`."""
    found = read_prompts(OWN_PROMPTS)
    folder = request.config.getoption("--prompts")
    if folder:
        files = sorted(Path(folder).glob("*.jsonl"))
        if not files:
            raise pytest.UsageError(f"--prompts {folder}: there are no *.jsonl files in it")
        for file in files:
            found += read_prompts(file, request.config.getoption("--prompts-limit"))
    return found


class Answers:
    """What takes long to compute, and several tests compare with, computed once in a run: workers share the folder.

    Args:
        folder: of this run; nothing is kept for another one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, question: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
        """The answer to a question, whose `repr` tells it from every other one, as JSON has it: tuples are lists."""
        file = self._folder / f"answer-{hashlib.sha256(repr(question).encode()).hexdigest()}.json"
        if not file.exists():
            own = file.with_suffix(f".{os.getpid()}")  # another worker may be at the same one
            own.write_text(json.dumps(compute()))
            own.replace(file)
        return json.loads(file.read_text())


@pytest.fixture(scope="session")
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """See `Answers`."""
    own = tmp_path_factory.getbasetemp()
    return Answers(own.parent if hasattr(request.config, "workerinput") else own)


def _embedded(name: str) -> tuple[Any, Any]:
    from talon_core.models import is_cached
    from talon_core.models.loading import load_model

    if not is_cached(name):
        missing = f"{name} is not in the cache; fetch it with: talon models fetch {name}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return load_model(name)


@contextmanager
def _probed_once(model: Any) -> Iterator[None]:
    """Each way to run a model is probed when it is first made into a target: of an embedded one that takes long."""
    from talon_core.hf.target import HFTarget

    probe, probed = HFTarget._probe, set()

    def once(target: HFTarget, nodes: int) -> None:
        accelerator = target.accelerator.name if target.accelerator is not None else None
        way = (target.attention.name, accelerator, target.states, target.graphs is not None)
        if target.model is not model or way not in probed:
            probe(target, nodes)
        if target.model is model:
            probed.add(way)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HFTarget, "_probe", once)
        yield


@pytest.fixture(scope="session")
def smollm() -> Iterator[tuple[Any, Any]]:
    """SmolLM2-135M-Instruct and its tokenizer, as `load` has them: weights in blocks, computed with in float32."""
    loaded = _embedded("smollm2-135m")
    with _probed_once(loaded[0]):
        yield loaded


@pytest.fixture(scope="session")
def gemma() -> Iterator[tuple[Any, Any]]:
    """Gemma 3 270M and its tokenizer, likewise."""
    loaded = _embedded("gemma3-270m")
    with _probed_once(loaded[0]):
        yield loaded


@pytest.fixture(scope="session")
def shared_target() -> "Callable[..., Decoder]":
    """Makes decoders as `decoder_for_model` does, of one target and one drafter in a run; see `SharedTargets`."""
    from talon_tests.shared_targets import SharedTargets

    return SharedTargets(drafters=True).decoder
