"""Many methods on many traces: each method on each text is worked out once, wherever, and kept."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from io import FileIO
from itertools import product
from pathlib import Path
from typing import Any

import attrs

from talon_core.basics import records
from talon_core.basics.paths import (
    LOCK,
    UNFINISHED,
    about,
    alone,
    is_unused,
    remove_unfinished,
    small_text,
    write_whole,
)
from talon_core.costs import Costs
from talon_core.engine.checked_drafter import checked_hash
from talon_core.errors import written
from talon_core.plugins.registry import Registry, load_registry
from talon_core.trace.along import Along
from talon_core.trace.code import code_of
from talon_core.trace.folder import Trace, read_trace
from talon_core.trace.methods import parse_methods
from talon_core.trace.oracle import Fewest, known_speeds
from talon_core.trace.own_time import to_be_timed, with_own_time
from talon_core.trace.processes import Executor
from talon_core.trace.replay import SECONDS, Method, Replay, Totals, sum_of_known
from talon_core.trace.run import tried_on, with_fewest

KIND, FORMAT = "talon sweep", 1
MANIFEST, RESULTS = "manifest.json", "results.jsonl"
TOGETHER = 16
"""Methods that are tried on a text before anything is kept; a text is read once for all of them."""

TEXTS, UNITS = 24, 16
"""Texts of a unit at most, and units in which many texts are at least, so that many processes have something to do.
Of texts that are grown side by side, each takes the less time the more there are."""

ANY_OF = re.compile(r"\{([^{}]*)\}")


def expanded(spec: str) -> list[str]:
    """Every method that a pattern stands for: `talon:budget={16,32},mu={0.01,0.1}` are four.

    Raises:
        ValueError: if a brace has no other, or nothing is in it.
    """
    pieces = ANY_OF.split(spec)  # what stands between braces is every second one
    if any(brace in piece for piece in pieces[::2] for brace in "{}"):
        raise ValueError(f"method '{spec}' has a brace without its other; several values are written {{16,32}}")
    values = [[value.strip() for value in piece.split(",")] for piece in pieces[1::2]]
    if not all(all(one) for one in values):
        raise ValueError(f"method '{spec}' has a brace with an empty value; several values are written {{16,32}}")
    chosen = (iter(one) for one in product(*values))
    return ["".join(next(one) if place % 2 else piece for place, piece in enumerate(pieces)) for one in chosen]


@attrs.frozen
class Passes:
    """Target passes on a text with the best trees of so many nodes; see `talon_core.trace.oracle.BestTrees`.

    Attributes:
        nodes: of a tree at most, the root included; None for any number.
        in_hindsight: passes with trees by somebody who knows the text.
        by_the_laws: passes with the nodes that are likeliest by the drafter's own laws.
        seconds: the fewest seconds, in hindsight, with as many nodes as pay; None where no costs are known.
        by_the_laws_seconds: likewise, by the drafter's own laws.
    """

    nodes: int | None
    in_hindsight: int
    by_the_laws: int
    seconds: float | None = None
    by_the_laws_seconds: float | None = None


Key = tuple[str, str, int, str, str, str | None]
"""What a line is about: its trace, set, prompt, method, code and profile."""


@attrs.frozen
class Line:
    """What became of one method on one text.

    Attributes:
        trace: the trace's fingerprint.
        set: the prompt set's name.
        prompt: the prompt's index in its set.
        method: as it was written.
        code: tells the method's parts, their options and their code from what they are after a change.
        profile: tells the profile from others; None without one.
        totals: what the method did.
        oracle: the passes that there would be with the best trees of as many nodes as the policy's `budget`.
    """

    trace: str
    set: str
    prompt: int
    method: str
    code: str
    profile: str | None
    totals: Totals
    oracle: Passes

    @property
    def key(self) -> Key:
        """What it is about."""
        return self.trace, self.set, self.prompt, self.method, self.code, self.profile

    def as_dict(self) -> dict[str, Any]:
        """It as plain data, for JSON; `from_dict` reads it."""
        return attrs.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Line":
        """What `as_dict` gave.

        Raises:
            ValueError: if it is no such thing; the sentence names the field and the value.
        """
        found: Line = records.make(cls, data, READERS)
        return found


def _totals(data: Any) -> Totals:
    counts = {field.name: records.whole for field in attrs.fields(Totals)}
    seconds = dict.fromkeys(SECONDS, records.maybe(records.amount))
    found: Totals = records.make(Totals, data, {**counts, **seconds})
    return found


def _passes(data: Any) -> Passes:
    counts = {"in_hindsight": records.whole, "by_the_laws": records.whole}
    seconds = dict.fromkeys(("seconds", "by_the_laws_seconds"), records.maybe(records.amount))
    found: Passes = records.make(Passes, data, {"nodes": records.maybe(records.whole), **counts, **seconds})
    return found


READERS: Mapping[str, records.Reader] = {
    "trace": records.words,
    "set": records.words,
    "prompt": records.whole,
    "method": records.words,
    "code": records.words,
    "profile": records.maybe(records.words),
    "totals": _totals,
    "oracle": _passes,
}


@attrs.frozen
class Unit:
    """Work that is done in one go: some methods on some texts of a trace.

    Attributes:
        folder: the trace's.
        texts: each by its set and prompt.
        methods: as they were written.
    """

    folder: Path
    texts: tuple[tuple[str, int], ...]
    methods: tuple[str, ...]

    def __str__(self) -> str:
        prompts = ", ".join(f"prompt {prompt} of the set '{name}'" for name, prompt in self.texts)
        return f"{prompts} in '{self.folder}'"


class Work:
    """Does a unit, in whichever process: what it needs besides is read where it runs, once.

    Args:
        costs: what passes take; None if nobody wants to know.
        time_all: with costs, take the policies' own time on all texts of a unit and not on some.
        timed: with costs, take the policies' own time at all.
        registry: where methods are looked up; what is installed by default. It stays in this process.
    """

    def __init__(
        self,
        costs: Costs | None = None,
        time_all: bool = False,
        timed: bool = True,
        registry: Registry | None = None,
    ) -> None:
        self.costs = costs
        self.time_all, self.timed = time_all, timed
        self._registry = registry
        self._traces: dict[Path, Trace] = {}
        self._methods: dict[tuple[Path, str], Method] = {}

    def __reduce__(self) -> Any:
        return Work, (self.costs, self.time_all, self.timed)

    def __call__(self, unit: Unit) -> list[list[tuple[Totals, Passes]]]:
        """What came of the methods, text by text."""
        if unit.folder not in self._traces:
            self._traces[unit.folder] = read_trace(unit.folder)
        trace = self._traces[unit.folder]
        if self._registry is None:
            self._registry = load_registry()
        missing = [spec for spec in unit.methods if (unit.folder, spec) not in self._methods]
        for spec, method in zip(missing, parse_methods(missing, trace, self._registry), strict=True):
            self._methods[unit.folder, spec] = method
        methods = [self._methods[unit.folder, spec] for spec in unit.methods]
        timed = unit.texts if self.time_all else to_be_timed(unit.texts)
        replay, texts = Replay(trace, self.costs, self.timed), [trace.text(*text) for text in unit.texts]
        tried = with_fewest(replay, methods, texts, tried_on(replay, methods, texts, timed))
        by_method = zip(methods, zip(*tried, strict=True), strict=True)
        found = [_with_passes(method, each) for method, each in by_method]
        return [list(of_text) for of_text in zip(*found, strict=True)]


def _with_passes(method: Method, each: Sequence[tuple[Totals, Along, Fewest | None]]) -> list[tuple[Totals, Passes]]:
    """What came of a method, text by text, and with the best trees of as many nodes as it may have."""
    nodes = 1 if method.policy is None else method.policy.budget
    passes = [
        Passes(nodes, along.in_hindsight(nodes), along.by_the_laws(nodes), *(attrs.astuple(fewest) if fewest else ()))
        for _, along, fewest in each
    ]
    return list(zip(with_own_time([own for own, *_ in each]), passes, strict=True))


class Sweep:
    """Methods on traces.

    Args:
        folders: of the traces.
        patterns: of methods; see `expanded`.
        costs: what passes take, on the machine that is asked about; None if nobody wants to know.
        profile: tells these costs from others.
        time_all: with costs, take the policies' own time on every text. A line that lacks it is worked out again.
        timed: with costs, take the policies' own time at all; without it, it is by the costs, as in `Replay`. Lines
            that differ in this are worked out again, too.

    Raises:
        ValueError: if a method is unknown, given twice or cannot be tried on one of the traces, or a trace is given
            twice.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        patterns: Sequence[str],
        costs: Costs | None = None,
        profile: str | None = None,
        time_all: bool = False,
        timed: bool = True,
    ) -> None:
        registry = load_registry()  # as whoever works does, in another process or on another machine
        self.traces = [read_trace(folder.absolute()) for folder in folders]
        known: dict[str, Path] = {}
        for trace in self.traces:
            if trace.fingerprint in known:
                raise ValueError(f"'{trace.folder}' and '{known[trace.fingerprint]}' are the same trace; give one")
            known[trace.fingerprint] = trace.folder
            if not trace.texts():
                raise ValueError(f"no text of the trace in '{trace.folder}' is there")
        self.methods = [spec for pattern in patterns for spec in expanded(pattern)]
        self._work, self._profile = Work(costs, time_all, timed, registry), profile
        self._code: dict[tuple[str, str], str] = {}  # by trace, as a method may be of its drafter, and by method
        self.made: dict[str, list[Method]] = {}  # of each trace, by its fingerprint
        for trace in self.traces:
            replay, made = Replay(trace), parse_methods(self.methods, trace, registry)
            self.made[trace.fingerprint] = made
            for method in made:
                replay.check(method)
                self._code[trace.fingerprint, method.name] = _code_of(method)
        self.methods = [spec.strip() for spec in self.methods]

    @cached_property
    def keys(self) -> list[Key]:
        """What each line is about, see `Line.key`, trace by trace, text by text."""
        return [
            self._key(trace, text, method) for trace in self.traces for text in trace.texts() for method in self.methods
        ]

    def run(
        self,
        folder: Path,
        executor: Executor,
        report: Callable[[int, int], None] = lambda done, all_: None,
    ) -> list[Line]:
        """Work out what the folder does not have yet, and keep it there.

        Args:
            folder: is made if it is not there. It may have lines of other methods and traces.
            executor: who works.
            report: called with the number of lines that are there and of all.

        Returns:
            A line for each of `keys`.

        Raises:
            ValueError: if the folder is one of something else, somebody else writes there, or the work fails; what was
                worked out before is kept.
            PluginError: if a plugin breaks its contract; the message names it.
            MemoryError: if there is too little memory.
        """
        _check_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder / LOCK, f"another sweep is writing into '{folder}'; wait for it, or give another folder"):
            lines = _opened(folder)
            wanted = {*self.keys}
            known = {line.key: line for line in lines if line.key in wanted and self._suffices(line)}
            report(len(known), len(wanted))
            units = [*self._units({*known})]
            results = folder / RESULTS
            with results.open("ab", buffering=0) as file:  # nothing is left to be written when a full disk refuses it
                for place, found in executor(self._work, units):
                    made = [*self._lines(units[place], found)]
                    with about(results):
                        _write(file, "".join(_text(line) for line in made).encode())
                    known |= {line.key: line for line in made}
                    report(len(known), len(wanted))
        return [known[key] for key in self.keys]

    def _key(self, trace: Trace, text: tuple[str, int], method: str) -> Key:
        return trace.fingerprint, *text, method, self._code[trace.fingerprint, method], self._profile

    def _suffices(self, line: Line) -> bool:
        if not self._work.costs:
            return True
        priced = line.oracle.by_the_laws_seconds is not None  # an earlier version has kept none
        asked = self._work.timed == (line.totals.policy_seconds is not None)
        return priced and asked and (not self._work.time_all or line.totals.timed_texts == 1)

    def _units(self, done: set[Key]) -> Iterator[Unit]:
        for trace in self.traces:
            texts = trace.texts()
            alike: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)  # by the methods that are left
            for text in texts:
                left = [method for method in self.methods if self._key(trace, text, method) not in done]
                alike[tuple(left)].append(text)
            size = min(TEXTS, -(-len(texts) // UNITS))
            for methods, own in alike.items():
                for first in range(0, len(own), size):
                    for begin in range(0, len(methods), TOGETHER):
                        together = tuple(own[first : first + size])
                        yield Unit(trace.folder, together, methods[begin : begin + TOGETHER])

    def _lines(self, unit: Unit, found: Sequence[Sequence[tuple[Totals, Passes]]]) -> Iterator[Line]:
        (trace,) = (trace for trace in self.traces if trace.folder == unit.folder)
        for text, own in zip(unit.texts, found, strict=True):
            for method, (totals, passes) in zip(unit.methods, own, strict=True):
                yield Line(*self._key(trace, text, method), totals, passes)


def _code_of(method: Method) -> str:
    """A hash of the method's parts with their options, which a name may come to mean, of their packages and files."""
    told = hashlib.sha256()
    for part in (method.policy, method.rule, method.drafter):
        if part is not None:
            told.update(f"{code_of(part)}\n".encode())
    if method.drafter is not None:
        told.update(checked_hash(method.drafter).encode())
    return told.hexdigest()[:16]


def _check_folder(folder: Path) -> None:
    file = folder / MANIFEST
    if not file.exists():
        if folder.exists() and (not folder.is_dir() or not is_unused(folder)):
            raise ValueError(f"'{folder}' is no folder of talon trace sweep: it has no {MANIFEST}; give another one")
        return
    try:
        data = records.dictionary(records.parsed(small_text(file)))
    except ValueError as error:
        raise ValueError(f"'{file}' is no manifest of talon trace sweep: {error}") from error
    if data.get("kind") != KIND or data.get("format") != FORMAT:
        raise ValueError(
            f"'{file}' says kind {written(data.get('kind'))} and format {written(data.get('format'))}; it must be "
            f"'{KIND}' and {FORMAT}"
        )


def _opened(folder: Path) -> list[Line]:
    """The lines of a folder; what a killed sweep has left at its end is taken away."""
    manifest, results = folder / MANIFEST, folder / RESULTS
    remove_unfinished(folder)
    if not manifest.exists():
        write_whole(manifest, json.dumps({"kind": KIND, "format": FORMAT}) + "\n", UNFINISHED)
    if not results.exists():
        return []
    if not results.is_file():
        raise ValueError(f"'{results}' is no file; the lines of a sweep must be there")
    *whole, cut = results.read_text(encoding="utf-8", errors="replace").split("\n")
    found = []
    for number, line in enumerate(whole, start=1):
        try:
            found.append(Line.from_dict(records.dictionary(records.parsed(line))))
        except ValueError as error:
            raise ValueError(f"line {number} of '{results}' is none of a sweep of this version: {error}") from error
    if cut:
        write_whole(results, "".join(_text(line) for line in found), UNFINISHED)
    return found


def _write(file: FileIO, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]


def _text(line: Line) -> str:
    return json.dumps(line.as_dict(), ensure_ascii=False, allow_nan=False) + "\n"


@attrs.frozen
class Summary:
    """What became of one method on a trace, or on one set of it.

    Attributes:
        trace: the trace's fingerprint.
        method: as it was written.
        set: the set's name; None for all of them.
        texts: how many.
        totals: of all texts.
        in_hindsight: tokens per target pass with the best trees of as many nodes as the policy's budget.
        by_the_laws: the same with the nodes that are likeliest by the drafter's laws.
        tokens_per_second: in hindsight, with as many nodes as pay; see `BestTrees`. None where no costs are known.
        by_the_laws_tokens_per_second: likewise, by the drafter's laws.
    """

    trace: str
    method: str
    set: str | None
    texts: int
    totals: Totals
    in_hindsight: float
    by_the_laws: float
    tokens_per_second: float | None = None
    by_the_laws_tokens_per_second: float | None = None

    @property
    def share(self) -> float | None:
        """Of the drafted tokens that could be accepted with as many nodes, how many are; None where none could."""
        most = self.in_hindsight - 1
        return (self.totals.mean_accepted_tokens - 1) / most if most > 0 else None

    def as_dict(self) -> dict[str, Any]:
        """It as plain data, as `talon trace sweep --json` prints it."""
        return {
            "trace": self.trace,
            "method": self.method,
            "set": self.set,
            "texts": self.texts,
            "mean_accepted_tokens": self.totals.mean_accepted_tokens,
            **self.totals.as_dict(),
            "oracle": {
                "in_hindsight": self.in_hindsight,
                "by_the_laws": self.by_the_laws,
                "share": self.share,
                **known_speeds(self),
            },
        }


def summaries(lines: Sequence[Line]) -> list[Summary]:
    """Trace by trace and method by method, in the order of the lines: of all sets together, and of each."""
    groups: dict[tuple[str, str, str | None], list[Line]] = defaultdict(list)
    for line in lines:
        groups[line.trace, line.method, None].append(line)
    for line in lines:
        groups[line.trace, line.method, line.set].append(line)
    found = []
    for (trace, method, name), own in groups.items():
        totals = Totals.all_of(line.totals for line in own)
        best = [
            sum_of_known([getattr(line.oracle, which) for line in own])
            for which in ("in_hindsight", "by_the_laws", "seconds", "by_the_laws_seconds")
        ]
        speeds: list[Any] = [totals.new_tokens / each if each else None for each in best]
        found.append(Summary(trace, method, name, len(own), totals, *speeds))
    return found
