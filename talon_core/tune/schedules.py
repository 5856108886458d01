"""Whether a schedule pays for a tuned policy, and which: each is simulated on the traces that it was tuned on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from talon_core.defaults import DEFAULT_PLACE, IN_TURN
from talon_core.engine.ahead.place import check_uses, parse_place
from talon_core.plugins.parts import check_place, made_schedule
from talon_core.plugins.registry import Registry
from talon_core.profiles.profile import Profile
from talon_core.trace.folder import Trace
from talon_core.trace.machines import Machines
from talon_core.trace.methods import parse_method
from talon_core.trace.replay import Replay
from talon_core.trace.schedules import Case, promises
from talon_core.trace.simulate import check_schedule


@attrs.frozen
class SchedulePlan:
    """Which schedules are tried, and where.

    Attributes:
        schedules: their specs.
        draft_on: where they draft, as `talon_core.load` takes it.
        drafter: what the drafter takes there; None where that is what the profile says.
        transfer: seconds of a message between the two.
        shared: how many times as long the target takes while the drafter works; None where nobody has said it.
        drafter_shared: how many times as long the drafter takes while the target works.
    """

    schedules: tuple[str, ...]
    draft_on: str = DEFAULT_PLACE
    drafter: Profile | None = None
    transfer: float = 0.0
    shared: float | None = None
    drafter_shared: float = 1.0

    def check(self, profile: Profile, traces: Sequence[Trace], policy: str, rule: str, registry: Registry) -> None:
        """Refuse what cannot be, before anything is searched.

        Args:
            profile: what passes take.
            traces: on which they are tried.
            policy: whose options are searched, a spec.
            rule: likewise.
            registry: where names are looked up.

        Raises:
            LookupError: for an unknown schedule.
            ValueError: if an option is bad, the drafter uses nothing of the place where it is to draft, it is not known
                what the drafter takes, or what target and drafter cost each other, or the policy, the rule or a
                schedule cannot be simulated on these traces.
            PluginError: if a schedule breaks its contract; the message names it.
        """
        for spec in self.schedules:
            schedule = made_schedule(registry, spec)
            if schedule is None:
                raise ValueError(
                    f"--schedule is '{spec}', with which every other one is compared; name one that goes ahead, as "
                    "cached"
                )
            check_place(self.draft_on, schedule)
        for trace in traces:
            drafter = trace["drafter"]
            check_uses(parse_place(self.draft_on), f"drafter '{drafter['spec']}'", drafter["reads_texts"])
        if self.transfer > 0 and self.drafter is None:
            raise ValueError(
                f"--transfer is {self.transfer:g}, and it is not said to which machine; name its --drafter-profile"
            )
        if self.shared is None and profile.machine["device"] == "cpu":
            raise ValueError(
                f"--schedule is '{self.schedules[0]}', and the profile '{profile.name}' is of a processor, where the "
                "drafter takes a core and memory from the target; say with --shared how many times as long a pass "
                "takes then (talon profile beside measures it)"
            )
        if self.drafter is not None and self.drafter.draft(1, 1) is None:
            raise ValueError(
                f"the profile '{self.drafter.name}' of --drafter-profile does not say what the drafter takes; make one "
                f"with it (talon profile measure --drafter {traces[0]['drafter']['spec']})"
            )
        shared = 1.0 if self.shared is None else self.shared
        for option, value, least in (
            *(("transfer", self.transfer, 0.0), ("shared", shared, 1.0)),
            ("drafter-shared", self.drafter_shared, 1.0),
        ):
            if value < least:
                raise ValueError(f"--{option} is {value:g}; it must be at least {least:g}")
        for trace in traces:
            replay, method = Replay(trace), parse_method(f"{policy} / {rule}", trace, registry)
            for spec in self.schedules:
                check_schedule(replay, method, made_schedule(registry, spec))


@attrs.frozen
class Scheduled:
    """Which schedule a policy is decoded with.

    Attributes:
        schedule: the fastest, "sync" where none is faster than drafting and verifying in turn.
        draft_on: where it drafts.
        said: why, in a sentence.
        tried: by spec, how many times as fast as in turn each would be.
        outside: by spec, in turn among them, nodes of trees that the traces know nothing of, where there are any: such
            figures are estimates.
    """

    schedule: str
    draft_on: str
    said: str
    tried: Mapping[str, float]
    outside: Mapping[str, int] = attrs.field(factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """It as plain data, as a preset has it."""
        return {
            "schedule": self.schedule,
            "draft_on": self.draft_on,
            "said": self.said,
            "tried": {spec: round(speedup, 4) for spec, speedup in self.tried.items()},
            "outside": dict(self.outside),
        }


def scheduled(
    traces: Sequence[Trace],
    policy: str,
    rule: str,
    costs: Profile,
    plan: SchedulePlan,
    registry: Registry,
    report: Callable[[int, int], None] = lambda done, all_: None,
) -> Scheduled:
    """Simulate a policy in turn and with schedules, on all texts of some traces.

    Args:
        traces: of one target and one drafter.
        policy: a spec.
        rule: likewise.
        costs: what passes take.
        plan: has passed `check`.
        registry: where names are looked up.
        report: called with the number of traces that are done and of all.

    Raises:
        ValueError: if the policy cannot be simulated, or a schedule can prepare nothing.
        PluginError: if a plugin breaks its contract; the message names it.
    """
    here = Machines(costs)
    ahead = Machines(costs, plan.drafter, plan.transfer, plan.shared or 1.0, plan.drafter_shared)
    seconds = dict.fromkeys((IN_TURN, *plan.schedules), 0.0)
    outside = dict.fromkeys(seconds, 0)
    waits = 0.0
    for done, trace in enumerate(traces, start=1):
        method = parse_method(f"{policy} / {rule}", trace, registry)
        wanted = [Case(method, IN_TURN, None, here)]
        wanted += [Case(method, spec, made_schedule(registry, spec), ahead) for spec in plan.schedules]
        for one in promises(trace, wanted).found:
            seconds[one.case.name] += one.stats.seconds
            outside[one.case.name] += one.unanswered.drafted
            waits += one.stats.draft_seconds if one.case.schedule is None else 0.0
        report(done, len(traces))
    in_turn = seconds[IN_TURN]
    asked = {spec: count for spec, count in outside.items() if count}
    tried = {spec: in_turn / seconds[spec] if seconds[spec] else 1.0 for spec in plan.schedules}
    best = max(tried, key=lambda spec: tried[spec])
    share = waits / in_turn if in_turn else 0.0
    why = f"in turn the target waits for the drafter in {share:.0%} of the time"
    if ahead.shared > 1:
        why += f", and beside a drafter that works a pass takes {ahead.shared:.2f} times as long"
    if tried[best] > 1:
        said = f"{best} on {plan.draft_on} would be {tried[best]:.2f} times as fast as in turn: {why}"
        return Scheduled(best, plan.draft_on, said, tried, asked)
    said = f"no schedule pays: the best, {best}, would be {tried[best]:.2f} times as fast as in turn; {why}"
    return Scheduled(IN_TURN, DEFAULT_PLACE, said, tried, asked)
