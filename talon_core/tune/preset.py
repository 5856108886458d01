"""The preset that a tuning comes to: what was found, and all that is needed to find it again."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from talon_core.plugins.presets import Preset
from talon_core.profiles.profile import MACHINE, Profile
from talon_core.trace.folder import Trace
from talon_core.tune.run import Tuned, TunePlan

if TYPE_CHECKING:
    from talon_core.tune.schedules import Scheduled

SAID_OF_SETS = ("name", "sha256", "prompts")


def preset_of(
    name: str,
    tuned: Tuned,
    traces: Sequence[Trace],
    profile: Profile,
    plan: TunePlan,
    made: Mapping[str, Any],
    schedule: "Scheduled | None" = None,
) -> Preset:
    """Put together what was found.

    Args:
        name: what it is called.
        tuned: what was found.
        traces: on which.
        profile: under which.
        plan: how.
        made: when, and with which command.
        schedule: with which it is decoded; None where none was tried.
    """
    searched = {one.option: str(one.values) for one in tuned.dimensions}
    settings = {"trials": plan.trials, "folds": plan.folds, "seed": plan.seed, "rule": plan.rule}
    return Preset(
        name=name,
        policy=tuned.best.spec,
        origin="tuned",
        made={**made, **settings, "searched": searched, "texts": tuned.texts},
        traces=[_said_of(trace) for trace in traces],
        profile={
            **{"name": profile.name, "origin": profile.origin, "drafter": profile.drafter},
            **{"model": dict(profile.model), "machine": {key: profile.machine[key] for key in MACHINE}},
        },
        schedule=None if schedule is None else schedule.as_dict(),
        gains={other: attrs.asdict(gain.left_out) for other, gain in tuned.gains.items()},
    )


def _said_of(trace: Trace) -> dict[str, Any]:
    settings = trace["settings"]
    return {
        "fingerprint": trace.fingerprint,
        "model": settings["model"],
        "weights_sha256": trace["target"]["weights_sha256"],
        "drafter": trace["drafter"]["spec"],
        "drafter_sha256": trace["drafter"]["sha256"],
        "temperature": settings["temperature"],
        "max_new_tokens": settings["max_new_tokens"],
        "sets": [{key: one.get(key) for key in SAID_OF_SETS} for one in settings["sets"]],
        "texts": len(trace.texts()),
    }
