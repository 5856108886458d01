"""How fast policies are on texts of traces, by a profile; each is replayed once on each text."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from statistics import fmean
from typing import TypeVar

import attrs

from talon_core.costs import Costs
from talon_core.defaults import NONE
from talon_core.plugins.parts import made_policy
from talon_core.plugins.registry import Registry
from talon_core.trace.folder import Trace
from talon_core.trace.methods import parse_method
from talon_core.trace.processes import in_processes
from talon_core.trace.replay import Method, Replay
from talon_core.trace.run import dealt
from talon_core.trace.trying import Trying

TIMED = 12
"""Texts on which a policy's own time is looked at."""

Prompt = tuple[tuple[int, str], int]
"""A set, as the number of a trace that has it and its name there, and which of its prompts."""

Thing = TypeVar("Thing")


@attrs.frozen(order=True)
class Text:
    """One text of several traces.

    Attributes:
        trace: the number of its trace.
        set: its set.
        prompt: which of the set.
    """

    trace: int
    set: str
    prompt: int


@attrs.frozen
class Speed:
    """A policy on one text.

    Attributes:
        tokens: new ones.
        seconds: that decoding would take by the profile, the reading of the prompt included and the policy's own time
            left out.
        outside: questions that the trace does not answer.
    """

    tokens: int
    seconds: float
    outside: int


@attrs.frozen
class _Asked:
    """A policy that is to be tried on some texts of a trace."""

    spec: str
    trace: int
    texts: tuple[Text, ...]

    def __str__(self) -> str:
        prompts = ", ".join(f"prompt {text.prompt} of the set '{text.set}'" for text in self.texts)
        return f"'{self.spec}' on {prompts}"


class Speeds:
    """Tries policies on texts, and remembers what came of it.

    Args:
        traces: the traces.
        costs: what passes take.
        registry: where policies are looked up.
        rule: the rule with which they are tried.
        jobs: processes.
    """

    def __init__(self, traces: Sequence[Trace], costs: Costs, registry: Registry, rule: str, jobs: int) -> None:
        self.traces, self._registry, self._rule, self._jobs = traces, registry, rule, jobs
        self._costs = costs
        self._replays = [Replay(trace, costs, timed=False) for trace in traces]
        self._known: dict[tuple[str, Text], Speed] = {}
        self._methods: dict[tuple[str, int], Method] = {}

    @cached_property
    def texts(self) -> list[Text]:
        """All that are there."""
        return [Text(number, *one) for number, trace in enumerate(self.traces) for one in trace.texts()]

    @cached_property
    def _first(self) -> dict[tuple[int, str], tuple[int, str]]:
        """For each set of each trace, by number and name, the first one of the same content."""
        first: dict[str, tuple[int, str]] = {}
        return {
            key: first.setdefault(str(one.get("sha256", key)), key)
            for number, trace in enumerate(self.traces)
            for one in trace["settings"]["sets"]
            for key in [(number, str(one["name"]))]
        }

    def sets(self) -> dict[str, list[list[Text]]]:
        """The texts by set and prompt: of a prompt that several traces have, all that it led to."""
        found = by_prompts((self.prompt(text), text) for text in self.texts)
        names = [name for _, name in found]
        return {
            name if names.count(name) == 1 else f"{name} of {self.traces[number].folder}": prompts
            for (number, name), prompts in found.items()
        }

    def prompt(self, text: Text) -> Prompt:
        """Of which set a text's prompt is, and which; sets of one content in two traces are the same set."""
        key = text.trace, text.set
        return self._first.get(key, key), text.prompt

    def check(self, spec: str) -> None:
        """Refuse a policy that cannot be tried on one of the traces; raises ValueError as `Replay.check` does."""
        for number in range(len(self.traces)):
            self._method(spec, number)

    def _method(self, spec: str, number: int) -> Method:
        found = self._methods.get((spec, number))
        if found is None:
            written = spec if spec == NONE else f"{spec} / {self._rule}"
            found = parse_method(written, self.traces[number], self._registry)
            self._replays[number].check(found)
            self._methods[spec, number] = found
        return found

    def try_all(self, wanted: Iterable[tuple[str, Text]]) -> None:
        """Replay what is not known yet.

        Raises:
            ValueError: if a policy cannot be made of its spec, or a file of a trace is none.
            PluginError: if a plugin breaks its contract; the message names it.
        """
        groups: dict[tuple[str, int], list[Text]] = defaultdict(list)
        for spec, text in dict.fromkeys(wanted):
            if (spec, text) not in self._known:
                groups[spec, text.trace].append(text)
        for spec, trace in groups:
            self._method(spec, trace)  # made here, once, and not in each process
        shards = -(-self._jobs // max(1, len(groups)))
        todo = [_Asked(*group, tuple(some)) for group, texts in groups.items() for some in dealt(texts, shards)]
        for place, found in in_processes(self._jobs)(self._try, todo):
            for text, speed in zip(todo[place].texts, found, strict=True):
                self._known[todo[place].spec, text] = speed

    def _try(self, asked: _Asked) -> list[Speed]:
        replay = self._replays[asked.trace]
        texts = [replay.trace.text(text.set, text.prompt) for text in asked.texts]
        method = self._method(asked.spec, asked.trace)
        # a policy of each text's own: what one has learned of the machine would hang on which texts came before
        done = Trying(replay, texts).done(method, lambda: made_policy(self._registry, asked.spec))
        return [Speed(one.totals.new_tokens, _known(one.totals.predicted_seconds), one.totals.outside) for one in done]

    def own_time(self, spec: str) -> float:
        """Which share of the time the policy itself takes here and now, which is left out everywhere else."""
        own = total = 0.0
        for text in self.texts[:TIMED]:
            trace = self.traces[text.trace]
            found = Replay(trace, self._costs).text(self._method(spec, text.trace), trace.text(text.set, text.prompt))
            own += sum(span.seconds for each in found.rounds for span in each.spans if span.part == "policy")
            total += found.seconds or 0.0
        return own / total if total else 0.0

    def of(self, spec: str, text: Text) -> Speed:
        """What is known of a policy on a text."""
        return self._known[spec, text]

    def outside(self, spec: str, texts: Iterable[Text]) -> int:
        """Questions of a policy that the traces do not answer, on these texts."""
        return sum(self.of(spec, text).outside for text in texts)

    def log_ratio(self, spec: str, other: str, text: Text) -> float:
        """How many times as fast one policy is as another on a text, as a logarithm."""
        return math.log(self.of(other, text).seconds / self.of(spec, text).seconds)

    def speed_up(self, spec: str, texts: Iterable[Text]) -> float:
        """How many times as fast as plain decoding: the geometric mean over sets of those of their prompts.

        So each prompt counts as much as another of its set, however long it is, and each set as much as another.
        """
        sets = by_prompts((self.prompt(text), self.log_ratio(spec, NONE, text)) for text in texts)
        return math.exp(fmean(fmean(map(fmean, prompts)) for prompts in sets.values()))


def by_prompts(pairs: Iterable[tuple[Prompt, Thing]]) -> dict[tuple[int, str], list[list[Thing]]]:
    """What is known of prompts, by set, and there by prompt: of one that several traces have, of all its texts."""
    found: dict[tuple[int, str], dict[int, list[Thing]]] = {}
    for (key, prompt), thing in pairs:
        found.setdefault(key, {}).setdefault(prompt, []).append(thing)
    return {key: [*prompts.values()] for key, prompts in found.items()}


def _known(seconds: float | None) -> float:
    assert seconds is not None  # the costs are
    return seconds
