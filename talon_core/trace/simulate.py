"""What schedules would take: the engine's own rounds over a trace, on machines on which time passes by costs."""

from collections.abc import Sequence
from typing import NamedTuple

import attrs

from talon_core.choices import SeededChoices
from talon_core.costs import Costs
from talon_core.drafter import Drafter, DrafterSpec
from talon_core.engine.ahead.opening import goes_ahead
from talon_core.engine.ahead.worker import InLine
from talon_core.engine.checked_drafter import opened
from talon_core.engine.engine import Engine
from talon_core.engine.plain import NoDrafter
from talon_core.request import Request
from talon_core.rounds import Round, Span, Stats
from talon_core.sampling import temperature_sampling
from talon_core.schedule import Schedule
from talon_core.target import Target
from talon_core.trace.clocked import Beside, Clock, Clocked
from talon_core.trace.columns import TextTrace
from talon_core.trace.drafter import TraceDrafter
from talon_core.trace.folder import Trace
from talon_core.trace.machines import Machines
from talon_core.trace.prices import priced_policy
from talon_core.trace.replay import Method, Replay, weight_bits_of
from talon_core.trace.written import Copies, Written
from talon_core.tree import read_only


class Unanswered(NamedTuple):
    """Nodes that the trace knows nothing of, or less than was asked for.

    Attributes:
        drafted: of trees that the target waited for: figures are not quite decoding's then.
        prepared: of what was prepared, outcomes and nodes below them. They were asked at and took their time; below
            those of which nothing is known nothing more was asked. Nodes on the text are recorded, so that an outcome
            that comes is among them only where more was asked for than was recorded; nodes below it, beside the text,
            may be.
    """

    drafted: int = 0
    prepared: int = 0


@attrs.frozen(eq=False)
class Simulated:
    """One text, as it would be decoded.

    Attributes:
        rounds: with the spans of all parts, by the costs.
        stats: their totals; seconds are by the costs.
        unanswered: what the trace does not tell.
    """

    rounds: Sequence[Round]
    stats: Stats
    unanswered: Unanswered


class _OfDepth(NoDrafter):
    """Stands for a recorded drafter, of which nothing is asked.

    Args:
        max_depth: that one's.
    """

    def __init__(self, max_depth: int | None) -> None:
        self.max_depth = max_depth  # type: ignore[assignment]  # of plain decoding it is a number


def check_schedule(replay: Replay, method: Method, schedule: Schedule | None = None) -> None:
    """Refuse a method, and a schedule, that cannot be simulated with this trace.

    Args:
        replay: of the trace.
        method: likewise.
        schedule: what is prepared; None drafts and verifies in turn.

    Raises:
        ValueError: if it cannot be replayed either (`Replay.check`), or its rule does more than to follow the text; if
            the schedule can prepare nothing with this drafter, or has an instant source that reads more than texts.
        PluginError: if the schedule breaks its contract; the message names it.
    """
    replay.check(method)
    if not replay.follows(method.rule):
        raise ValueError(
            f"method '{method.name}': rule '{method.rule.name}' tests the target's probabilities, and what is "
            "simulated follows the text; take the rule match"
        )
    if schedule is None or method.policy is None:
        return
    told, target = replay.trace["drafter"], replay.trace.target
    drafter = _OfDepth(told["max_depth"]) if method.drafter is None else opened(method.drafter, target)
    goes_ahead(drafter, method.drafter or Recorded(told["name"]), schedule, InLine, target)


def simulated(
    trace: Trace, method: Method, text: TextTrace, schedule: Schedule | None, machines: Machines
) -> Simulated:
    """Decode a text of a trace with a schedule, on machines on which time passes by costs.

    The engine, its schedules and what they prepare with are the real ones: the target is replaced by one that knows the
    text, the drafter by what it said when the text was recorded, and the worker by one that counts. So a round begins
    with what was prepared if its outcome is among those that the schedule names and the drafter was done with it in
    time. Nothing is drawn, and the same question has the same answer.

    Args:
        trace: the trace.
        method: has passed `check_schedule`.
        text: of the trace.
        schedule: what is prepared; None drafts and verifies in turn.
        machines: what everything takes.

    Raises:
        ValueError: if the schedule can prepare nothing with this drafter.
        PluginError: if a plugin breaks its contract; the message names it.
    """
    clock, busy, machines = Clock(), Clock(), machines.drafting_with(method.drafter)
    vocab_size, settings = int(trace["target"]["vocab_size"]), trace["settings"]
    drafter = _drafter(trace, method, text)
    recorded = drafter if isinstance(drafter, TraceDrafter) else None

    def unanswered() -> int:
        return recorded.unanswered if recorded is not None else 0

    deepest = int(settings["depth"]) if recorded is not None else None
    spec = method.drafter or method.recorded or Recorded(trace["drafter"]["name"])
    apart = machines.drafter is not None
    drafting = Clocked(
        drafter,
        machines.drafting,
        clock,
        machines.way,
        unanswered=unanswered,
        late=schedule is None or apart,
        catches_up=apart and spec.catches_up,
    )
    behind = Clocked(drafter, machines.drafting, busy, max_depth=deepest, unanswered=unanswered)
    beside = Beside(drafting, behind, busy, clock, machines)
    writer = Written(text, vocab_size, weight_bits_of(trace), machines.target, clock, beside.during)
    drafts = method.policy is not None
    engine = Engine(
        writer,
        Copies(writer),
        method.policy,
        drafting if drafts else None,
        spec if drafts else None,
        costs=machines.costs,
        allocator=None,
        keep=False,
        schedule=schedule if drafts else None,
        worker=lambda _: beside,
        now=clock.now,
    )
    request = Request(
        read_only(text.ids[: text.prompt_tokens]),
        trace.limit(text),
        temperature_sampling(float(settings["temperature"])),
        frozenset(trace["target"]["eos"]),
        (lambda ids: ids.shape[1] >= len(text.ids),),
    )
    rounds = list[Round]()
    with engine.session():
        sequence = engine.submit(request, SeededChoices(int(settings["seed"]) + text.prompt))
        while not sequence.finished:
            rounds += [_with_policy(one, machines.target, clock) for one in engine.step().values()]
    if sequence.error is not None:
        raise sequence.error
    if recorded is not None:
        recorded.check(vocab_size)
    seconds = sequence.seconds + rounds[-1].policy_seconds  # which comes behind the sequence's end
    stats = Stats.of(rounds, seconds, sequence.prefill_seconds)
    return Simulated(rounds, stats, Unanswered(drafting.outside, behind.outside))


def _with_policy(round_: Round, costs: Costs, clock: Clock) -> Round:
    """A round, and behind it the time of its policy, which passes here: its calls take none by the clock."""
    started = clock.seconds
    clock.spend(priced_policy(costs, len(round_.layer_seconds)))
    if clock.seconds == started:
        return round_
    return attrs.evolve(round_, spans=(*round_.spans, Span("policy", started, clock.seconds)))


def _drafter(trace: Trace, method: Method, text: TextTrace) -> Drafter:
    """What drafts for a text: what was recorded, or a drafter of texts, opened."""
    if method.policy is None:
        return NoDrafter()
    if method.drafter is not None:
        return opened(method.drafter, trace.target)
    takes_paths = method.recorded is not None and method.recorded.takes_paths
    return TraceDrafter(text, trace["drafter"]["max_depth"], takes_paths)


@attrs.frozen
class Recorded(DrafterSpec):
    """Stands for the drafter that was recorded, by its name.

    Attributes:
        name: the drafter's.
    """

    name: str  # type: ignore[misc]  # of this one the name is known when the trace is

    def open(self, target: Target) -> Drafter:
        raise RuntimeError("a recorded drafter is not opened: its trace answers")
