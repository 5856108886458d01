"""Tuning a policy: a search on all texts, and for each fold one on the others, to see what such a search is worth."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from time import perf_counter
from typing import Any

import attrs
import numpy as np

from talon_core.bench.bootstrap import Interval, mean_with_interval
from talon_core.costs import Costs
from talon_core.defaults import NONE
from talon_core.plugins.parts import built
from talon_core.plugins.presets import spelled_out
from talon_core.plugins.registry import Registry
from talon_core.trace.folder import Trace
from talon_core.tree import FloatArray
from talon_core.tune.folds import dealt
from talon_core.tune.search import Search, Trial
from talon_core.tune.space import Dimension, Space
from talon_core.tune.speeds import Speeds, Text, by_prompts


@attrs.frozen
class TunePlan:
    """How a policy is tuned.

    Attributes:
        trials: of each search.
        folds: of the prompts, each left out of one search.
        seed: of the folds and the searches.
        rule: with which acceptance rule.
        against: a policy that the result is compared with, besides the policy without a search and plain decoding.
        jobs: processes.
    """

    trials: int = 100
    folds: int = 5
    seed: int = 0
    rule: str = "auto"
    against: str | None = None
    jobs: int = 1

    def check(self) -> None:
        """Refuse what cannot be.

        Raises:
            ValueError: the sentence names the value.
        """
        for name, least in (("trials", 1), ("folds", 2), ("seed", 0), ("jobs", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"--{name} is {getattr(self, name)}; it must be at least {least}")
        if self.seed >= 2**32:
            raise ValueError(f"--seed is {self.seed}; it must be below {2**32}")


@attrs.frozen
class Gain:
    """How many times as fast the tuned policy is as another one.

    Attributes:
        left_out: on prompts left out of the search that found the options, with what each search found.
        searched: on the prompts that the options were searched on; what a search looks like without such a check.
    """

    left_out: Interval
    searched: float


@attrs.frozen
class Tuned:
    """What came of it.

    Attributes:
        space: what was searched.
        best: the trial that won, of the search on all texts.
        trials: all of that search; the first is the policy without a search.
        folds: what each of the other searches found.
        gains: by the policy that is compared with.
        tokens_per_second: by policy, on all texts, as predicted; the tuned one's among them.
        texts: on which.
        missing: texts of the traces that are not there.
        tried: trials of all searches.
        left_out: how many of them are left out because they asked what the traces do not answer.
        refused: how many of them the policy has refused.
        outside: by policy, questions of those that are compared that the traces do not answer, where there are any.
        own_time: by policy, which share of the time it takes itself, here and now; nothing of the above counts it.
        seconds: all of it took.
    """

    space: Space
    best: Trial
    trials: Sequence[Trial]
    folds: Sequence[Trial]
    gains: Mapping[str, Gain]
    tokens_per_second: Mapping[str, float]
    texts: int
    missing: int
    tried: int
    left_out: int
    refused: int
    outside: Mapping[str, int]
    own_time: Mapping[str, float]
    seconds: float

    @property
    def dimensions(self) -> Sequence[Dimension]:
        """What was searched."""
        return self.space.dimensions

    def as_dict(self) -> dict[str, Any]:
        """It as plain data, as `talon tune --json` prints it."""
        return {
            "policy": self.best.spec,
            "searched": [one.as_dict() for one in self.dimensions],
            "speed_up": self.best.speed_up,
            "gains": {name: attrs.asdict(gain) for name, gain in self.gains.items()},
            "predicted_tokens_per_second": dict(self.tokens_per_second),
            "folds": [one.spec for one in self.folds],
            "texts": self.texts,
            "missing": self.missing,
            "tried": self.tried,
            "left_out": self.left_out,
            "refused": self.refused,
            "outside": dict(self.outside),
            "own_time": dict(self.own_time),
            "trials": [attrs.asdict(one) for one in self.trials],
            "seconds": self.seconds,
        }


def tuned(
    traces: Sequence[Trace],
    space: Space,
    costs: Costs,
    registry: Registry,
    plan: TunePlan,
    report: Callable[[int, int], None] = lambda done, all_: None,
) -> Tuned:
    """Search a policy's options, and measure on prompts left out what that is worth.

    The same traces, costs and plan give the same answer, however many processes there are.

    Args:
        traces: on which; of one target and one drafter.
        space: the policy and what of it is searched.
        costs: what passes take.
        registry: where policies are looked up.
        plan: how.
        report: called with the number of trials of each search that are done and of all.

    Raises:
        ValueError: if the traces have too few texts, the policy cannot be tried on them, or they answer no trial.
        PluginError: if a plugin breaks its contract; the message names it.
    """
    plan.check()
    return _Tuning(traces, space, costs, registry, plan).run(report)


class _Tuning:
    """The searches, one on all texts and one for each fold, side by side: what several ask is replayed once."""

    def __init__(self, traces: Sequence[Trace], space: Space, costs: Costs, registry: Registry, plan: TunePlan) -> None:
        self._space, self._plan, self._registry = space, plan, registry
        self._speeds = Speeds(traces, costs, registry, plan.rule, plan.jobs)
        self._missing = sum(trace.planned_texts for trace in traces) - len(self._speeds.texts)
        if not self._speeds.texts:
            where = ", ".join(f"'{trace.folder}'" for trace in traces)
            raise ValueError(f"no text of the trace in {where} is there; go on with talon trace record")
        parts = dealt(self._speeds.sets(), plan.folds, plan.seed)
        self._folds = [[text for prompt in part for text in prompt] for part in parts]
        self._compared = [space.base, NONE]
        if plan.against is not None:
            against = spelled_out(registry, plan.against)
            self._compared += [against] if against not in self._compared else []
        for spec in self._compared:
            self._speeds.check(spec)

    def run(self, report: Callable[[int, int], None]) -> Tuned:
        started, speeds, plan = perf_counter(), self._speeds, self._plan
        everything = speeds.texts
        report(0, plan.trials)
        speeds.try_all((spec, text) for spec in self._compared for text in everything)
        if not all(speeds.of(NONE, text).seconds > 0 for text in everything):
            raise ValueError("by the profile, decoding takes no time; take one that says what a pass takes")
        searched_on = [everything, *([text for text in everything if text not in fold] for fold in self._folds)]
        searches = [Search(self._space, plan.seed, plan.trials) for _ in searched_on]
        base = self._space.base, self._space.defaults
        for search, texts in zip(searches, searched_on, strict=True):
            search.begin(self._trial(*base, "", texts))
        for done in range(1, plan.trials + 1):
            self._step(searches, searched_on)
            report(done, plan.trials)
        best, *picked = (self._best(search) for search in searches)
        speeds.try_all((one.spec, text) for one, fold in zip(picked, self._folds, strict=True) for text in fold)
        all_trials = [trial for search in searches for trial in search.trials[1:]]
        return Tuned(
            space=self._space,
            best=best,
            trials=searches[0].trials,
            folds=picked,
            gains={spec: self._gain(best, picked, spec) for spec in self._compared},
            tokens_per_second={
                spec: self._tokens_per_second(spec) for spec in {best.spec: 0, **dict.fromkeys(self._compared)}
            },
            texts=len(everything),
            missing=self._missing,
            tried=len(all_trials),
            left_out=sum(trial.outside > 0 for trial in all_trials),
            refused=sum(bool(trial.fault) for trial in all_trials),
            outside=self._outside(picked),
            own_time={spec: speeds.own_time(spec) for spec in (best.spec, self._space.base)},
            seconds=perf_counter() - started,
        )

    def _step(self, searches: Sequence[Search], searched_on: Sequence[Sequence[Text]]) -> None:
        """One trial of each search."""
        asked = [search.ask() for search in searches]
        specs = [self._space.spec(options) for options in asked]
        faults = {spec: self._fault(spec) for spec in specs}
        wanted = zip(specs, searched_on, strict=True)
        self._speeds.try_all((spec, text) for spec, texts in wanted if not faults[spec] for text in texts)
        for search, options, spec, texts in zip(searches, asked, specs, searched_on, strict=True):
            search.tell(self._trial(spec, options, faults[spec], texts))

    def _fault(self, spec: str) -> str:
        """Why the policy refuses these options together, each of which it takes; empty if it does not."""
        try:
            built(self._registry, "tree policy", spec)
        except ValueError as error:
            return str(error)
        return ""

    def _trial(self, spec: str, options: Mapping[str, str], fault: str, texts: Sequence[Text]) -> Trial:
        if fault:
            return Trial(spec, options, None, fault=fault)
        return Trial(spec, options, self._speeds.speed_up(spec, texts), self._speeds.outside(spec, texts))

    def _best(self, search: Search) -> Trial:
        best = search.best
        if best is None:
            raise ValueError(
                f"the traces answer none of {len(search.trials)} trials in full; record with more --nodes, --depth or "
                "--width, or search smaller trees"
            )
        return best

    def _gain(self, best: Trial, picked: Sequence[Trial], other: str) -> Gain:
        by_set = by_prompts(
            (self._speeds.prompt(text), self._speeds.log_ratio(one.spec, other, text))
            for one, fold in zip(picked, self._folds, strict=True)
            for text in fold
        )
        groups: list[FloatArray] = [np.array([*map(fmean, by_set[key])]) for key in sorted(by_set)]
        found = mean_with_interval(groups, lambda drawn: np.mean(drawn, axis=1))
        low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
        everything = self._speeds.texts
        ratio = self._speeds.speed_up(best.spec, everything) / self._speeds.speed_up(other, everything)
        return Gain(Interval(math.exp(found.median), low, high, found.prompts), ratio)

    def _tokens_per_second(self, spec: str) -> float:
        speeds = [self._speeds.of(spec, text) for text in self._speeds.texts]
        return sum(one.tokens for one in speeds) / sum(one.seconds for one in speeds)

    def _outside(self, picked: Sequence[Trial]) -> dict[str, int]:
        """Of what is compared; a search sees to its own texts, and not to those left out."""
        pairs = {(spec, text) for spec in self._compared for text in self._speeds.texts}
        pairs |= {(one.spec, text) for one, fold in zip(picked, self._folds, strict=True) for text in fold}
        found: dict[str, int] = {}
        for spec, text in sorted(pairs):
            found[spec] = found.get(spec, 0) + self._speeds.of(spec, text).outside
        return {spec: count for spec, count in found.items() if count}
