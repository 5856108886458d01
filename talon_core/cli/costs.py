"""The costs that a command takes from profiles, if these are of this machine and of what was recorded."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from talon_core.cli.output import if_interrupted, note

if TYPE_CHECKING:
    from talon_core.profiles.profile import Profile
    from talon_core.trace.folder import Trace
    from talon_core.trace.replay import Method


RECORDED = ("device", "dtype", "attention", "accelerator")
"""What decides on costs besides the machine that replays, as a trace's environment and a profile's machine call it."""


def costs_for(profile: str, traces: Sequence["Trace"], other_machine: bool) -> "Profile":
    """The profile that is named.

    Args:
        profile: its name or its file.
        traces: what it is used on.
        other_machine: take it even if it is of another machine, model or drafter, or of a target that ran otherwise
            than when it was recorded.

    Raises:
        LookupError: if there is none of that name.
        ValueError: if it is none, or of something else where that is not meant; the sentence names the differences.
    """
    from talon_core.profiles.store import find_profile
    from talon_core.trace.processes import apart

    costs = find_profile(profile)
    if not other_machine:
        _check(costs, traces, apart(_machine), RECORDED, "here")
    _note_temperature(costs, traces)
    return costs


def _note_temperature(costs: "Profile", traces: Sequence["Trace"]) -> None:
    """Say on stderr where a profile was measured on greedy texts and a trace has drawn ones, or the other way round."""
    recorded = {trace["settings"]["temperature"] for trace in traces}
    others = sorted(each for each in recorded if (each > 0) is not (costs.temperature > 0))
    if others and costs.origin == "measured":
        note(
            f"profile '{costs.name}' was measured at temperature {costs.temperature:g}, and the trace recorded at "
            f"{others[0]:g}; passes take longer where tokens are drawn, so talon profile measure --temperature "
            f"{others[0]:g} makes one that fits"
        )


def check_drafter_costs(costs: "Profile", traces: Sequence["Trace"], other_machine: bool) -> None:
    """Refuse the profile of a drafter's own machine if it is of another drafter or model than what was recorded.

    Args:
        costs: what the drafter takes there; the machine is meant to be another one.
        traces: what it is used on.
        other_machine: take it even so.

    Raises:
        ValueError: if it is of something else where that is not meant; the sentence names the differences.
    """
    if not other_machine:
        _check(costs, traces, {}, (), "on the drafter's machine")


def note_assumed(trace: "Trace", methods: Sequence["Method"], command: str = "replay") -> None:
    """Say on stderr whose policies asked what passes take, which nobody told: while decoding it is measured.

    Args:
        trace: has a text.
        methods: were tried on it without a profile.
        command: of `talon trace`, which takes a profile.
    """
    from talon_core.trace.replay import Replay

    replay, text = Replay(trace), trace.text(*trace.texts()[0])
    with if_interrupted("the trace is as it was"):
        asking = [one.name for one in methods if replay.lacks_costs(one, text)]
    if asking:
        note(
            f"no profile says what passes take, so that what is assumed is followed by {', '.join(asking)}; "
            f"talon trace {command} --profile tells them"
        )


def _check(
    costs: "Profile", traces: Sequence["Trace"], machine: Mapping[str, Any], recorded: Collection[str], where: str
) -> None:
    """Refuse a profile of another machine, or of another model or drafter than was recorded.

    Args:
        costs: the profile.
        traces: what it is used on.
        machine: what it is compared with besides; nothing where any will do.
        recorded: what is compared with how the target ran when it was recorded, as far as a trace tells.
        where: another profile is to be made, for the error.
    """
    from talon_core.profiles.store import check_used
    from talon_core.trace.replay import weight_bits_of

    for trace in traces:
        told = trace["environment"]  # of earlier versions it says less
        here = {**{name: told[name] for name in recorded if name in told}, **machine}
        here["weight_bits"] = weight_bits_of(trace)
        differences = costs.differences(here, trace["target"]["weights_sha256"], trace["drafter"]["spec"])
        check_used(costs, differences, other_machine=False, where=where)


def _machine() -> dict[str, Any]:
    """This machine; torch is loaded to ask it for its threads."""
    from talon_core.runtime.machine import describe_machine

    return describe_machine()
