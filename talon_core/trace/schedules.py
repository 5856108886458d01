"""Schedules on all texts of a trace: how fast each would be, and who waits for whom."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from talon_core.defaults import IN_TURN, NONE
from talon_core.rounds import Round, Stats
from talon_core.schedule import Schedule
from talon_core.trace.folder import Trace
from talon_core.trace.machines import Machines
from talon_core.trace.replay import Method, Replay
from talon_core.trace.simulate import Unanswered, check_schedule, simulated


@attrs.frozen
class Case:
    """What is simulated.

    Attributes:
        method: the policy and the rest.
        name: the schedule's, as the user wrote it.
        schedule: it; None drafts and verifies in turn.
        machines: where.
    """

    method: Method
    name: str
    schedule: Schedule | None
    machines: Machines

    @property
    def place(self) -> str:
        """Where the drafter is, "here" beside the target or "there"."""
        return "here" if self.machines.drafter is None else "there"


@attrs.frozen(eq=False)
class Promise:
    """What a case would take on all texts.

    Attributes:
        case: it.
        stats: totals; seconds are by the costs.
        unanswered: what the trace does not tell.
        speedup: how many times as fast as its method in turn.
    """

    case: Case
    stats: Stats
    unanswered: Unanswered
    speedup: float

    @property
    def target_works(self) -> float:
        """In which share of the time the target verifies, in [0, 1]."""
        return self._share(self.stats.verify_seconds)

    @property
    def drafter_works(self) -> float:
        """In which share of the time the drafter drafts or prepares, in [0, 1]."""
        return self._share(self.stats.draft_seconds - self.stats.wait_seconds + self.stats.prepare_seconds)

    @property
    def target_waits(self) -> float:
        """In which share of the time the target waits for the drafter, in [0, 1]."""
        return self._share(self.stats.draft_seconds)

    def _share(self, seconds: float) -> float:
        return seconds / self.stats.seconds if self.stats.seconds else 0.0

    @property
    def hits(self) -> float | None:
        """The share of the rounds for which something was prepared that began with it; None where nothing was."""
        told = self.stats.hits + self.stats.misses
        return self.stats.hits / told if told else None

    def as_dict(self) -> dict[str, Any]:
        """It as plain data."""
        return {
            "method": self.case.method.name,
            "schedule": self.case.name,
            "drafter": self.case.place,
            "speedup": self.speedup,
            "hit_rate": self.hits,
            "target_works": self.target_works,
            "target_waits": self.target_waits,
            "drafter_works": self.drafter_works,
            "unanswered": self.unanswered._asdict(),
            "stats": self.stats.as_dict(),
        }


@attrs.frozen(eq=False)
class Promises:
    """What came of all cases.

    Attributes:
        found: of each method first the case in turn.
        texts: on which they were tried.
        shown: the rounds of the first text, of the fastest case with a schedule, or the fastest of all.
        best: that case.
    """

    found: Sequence[Promise]
    texts: int
    shown: Sequence[Round]
    best: Promise

    @property
    def said(self) -> str:
        """Whether a schedule pays, and why not, in a sentence or two."""
        best, stats = self.best, self.best.stats
        if best.case.schedule is None:
            return "Nothing was simulated but drafting and verifying in turn."
        turn = next(one for one in self.found if one.case.method == best.case.method)
        name = f"{best.case.method.name} with the schedule {best.case.name}"
        waited = f"{turn.target_waits:.0%}"
        if best.speedup > 1:
            said = (
                f"{name} would be {best.speedup:.2f} times as fast as in turn: the target waits for the drafter in "
                f"{best.target_waits:.0%} of the time in the place of {waited}, and {stats.hits} of "
                f"{stats.hits + stats.misses} rounds begin with what was prepared."
            )
            return f"{said}{self._plain_is_faster()}"
        slower = best.case.machines.shared
        why = f", and beside a drafter that works it takes {slower:.2f} times as long for a pass" if slower > 1 else ""
        return (
            f"No schedule pays: the best, {name}, would be {best.speedup:.2f} times as fast as in turn. In turn the "
            f"target waits for the drafter in {waited} of the time{why}."
        )

    def _plain_is_faster(self) -> str:
        """A sentence behind another one, where nothing should be drafted at all."""
        plain = [one for one in self.found if one.case.method.policy is None]
        ratios = [self.best.stats.seconds / one.stats.seconds for one in plain if one.stats.seconds]
        return (
            f" Plain decoding would be {max(ratios):.2f} times as fast as that." if max(ratios, default=0) > 1 else ""
        )

    def as_dict(self) -> dict[str, Any]:
        """It as plain data, as `talon trace simulate --json` prints it."""
        return {"cases": [one.as_dict() for one in self.found], "texts": self.texts, "said": self.said}


def cases(methods: Sequence[Method], schedules: Mapping[str, Schedule | None], machines: Machines) -> list[Case]:
    """What is simulated: each method in turn, beside the target as far as it is known what that takes, and schedules.

    Plain decoding is among them: a schedule that verifies the root alone after a miss gains where trees cost too much.

    Args:
        methods: at least one.
        schedules: by what the user calls them; None drafts and verifies in turn.
        machines: what everything takes.

    Raises:
        ValueError: if it is not known what the target or the drafter takes.
    """
    if machines.target.verify(1, 1) is None:
        raise ValueError("the profile does not tell what passes of the target take; measure one with talon profile")
    here = attrs.evolve(machines, drafter=None)
    named = {IN_TURN: None, **schedules}
    found = []
    plain = [] if any(method.policy is None for method in methods) else [Method(NONE, None, methods[0].rule)]
    for method in (*methods, *plain):
        if method.policy is None:
            found.append(Case(method, IN_TURN, None, here))
            continue
        own = machines.drafting_with(method.drafter)
        if own.drafting.draft(1, 1) is None:
            raise ValueError(
                "the profile does not tell what the drafter takes; measure one with talon profile and --drafter"
            )
        if own.drafter is not None and own.target.draft(1, 1) is not None:
            found.append(Case(method, IN_TURN, None, here))
        found += [Case(method, name, schedule, machines) for name, schedule in named.items()]
    return found


def promises(
    trace: Trace,
    wanted: Sequence[Case],
    limit: int | None = None,
    report: Callable[[int, int], None] = lambda done, all_: None,
) -> Promises:
    """Simulate on every text of a trace that is there.

    Args:
        trace: the trace.
        wanted: from `cases`.
        limit: most texts of each set; None for all.
        report: called with the number of texts that are done and of all, each case's counted.

    Raises:
        ValueError: if a method cannot be simulated, a schedule can prepare nothing, or the trace has no texts.
        PluginError: if a plugin breaks its contract; the message names it.
    """
    replay = Replay(trace)
    for case in wanted:
        check_schedule(replay, case.method, case.schedule)
    texts = [one for one in trace.texts() if limit is None or one[1] < limit]
    if not texts:
        raise ValueError(f"no text of the trace in '{trace.folder}' is there")
    found, firsts = list[Promise](), list[Sequence[Round]]()
    in_turn: dict[str, float] = {}
    for number, case in enumerate(wanted):
        rounds, seconds, prefill, drafted, prepared = list[Round](), 0.0, 0.0, 0, 0
        for done, text in enumerate(texts):
            one = simulated(trace, case.method, trace.text(*text), case.schedule, case.machines)
            if not done:
                firsts.append(one.rounds)
            rounds += one.rounds
            seconds, prefill = seconds + one.stats.seconds, prefill + one.stats.prefill_seconds
            drafted, prepared = drafted + one.unanswered.drafted, prepared + one.unanswered.prepared
            report(number * len(texts) + done + 1, len(wanted) * len(texts))
        stats = Stats.of(rounds, seconds, prefill)
        first = in_turn.setdefault(case.method.name, seconds)
        found.append(Promise(case, stats, Unanswered(drafted, prepared), first / seconds if seconds else 1.0))
    place = max(range(len(found)), key=lambda at: (found[at].case.schedule is not None, found[at].speedup))
    return Promises(found, len(texts), firsts[place], found[place])
