"""Options that several commands share, and the checks that need no model."""

from typing import Annotated, Any

import typer

from talon_core.basics.numerals import LARGEST, decimal, fault_of_temperature, whole
from talon_core.cli.helps import first_sentence
from talon_core.cli.streams import JSON, current
from talon_core.decoding.loading import load
from talon_core.defaults import (
    AUTO,
    DEFAULT_DRAFTER,
    DEFAULT_MODEL,
    DEFAULT_PLACE,
    DEFAULT_POLICY,
    DEFAULT_RULE,
    DEFAULT_SCHEDULE,
)
from talon_core.errors import written
from talon_core.plugins.parts import Parts, Resolved, resolve
from talon_core.plugins.registry import load_registry


def help_of(option: str, listed: str | None = None) -> str:
    """What `load` says of an option; and of those that take a spec how one is written.

    Args:
        option: a parameter of `load`.
        listed: what `talon list` calls the parts that it takes.
    """
    spec = f" (name:option=value,... of talon list {listed})" if listed is not None else ""
    return f"{first_sentence(load, option)}{spec}."


Model = Annotated[
    str,
    typer.Option("--model", help="An embedded model (talon models list), a folder, a GGUF file, or a Hugging Face id."),
]
Drafter = Annotated[str, typer.Option("--drafter", help=help_of("drafter", "drafters"))]
Policy = Annotated[str, typer.Option("--policy", help=help_of("policy", "policies"))]
Rule = Annotated[str, typer.Option("--rule", help=help_of("rule", "rules"))]
Schedule = Annotated[
    str,
    typer.Option(
        "--schedule",
        help="What is prepared while the target verifies; sync prepares nothing, drafts and verifies in turn; auto is "
        "what talon tune --schedule has kept with the policy's preset for this machine, model and drafter, and "
        "otherwise sync (name:option=value,... of talon list schedules).",
    ),
]
DraftOn = Annotated[str, typer.Option("--draft-on", metavar="thread|cpu:N|cuda:N", help=help_of("draft_on"))]
Lossy = Annotated[bool, typer.Option("--lossy", help=help_of("lossy"))]
Replace = Annotated[bool, typer.Option("--replace", help="Replace what you have kept under this name.")]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run code that the model's folder brings; without it such code is never run. A drafter has an option for "
        "its own.",
    ),
]
Attention = Annotated[str | None, typer.Option("--attention", help=help_of("attention"))]
Profile = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME|FILE", help="What passes take: a profile of talon profile, or its file."),
]
OtherMachine = Annotated[
    bool,
    typer.Option("--other-machine", help="Take a profile of another machine, model or drafter: it is meant."),
]
TimeAll = Annotated[
    bool,
    typer.Option("--time-all", help="With --profile: measure what policies themselves take on all texts."),
]
Untimed = Annotated[
    bool,
    typer.Option("--untimed", help="With --profile: leave out what policies themselves take here, which is sooner."),
]


def number(text: str | float) -> float:
    """An option's value as a finite number; typer's own error does not say which text it could not read."""
    try:
        return decimal(str(text))
    except ValueError:
        raise typer.BadParameter(f"{written(str(text))} is not a finite number") from None


def whole_number(text: str | int) -> int:
    """An option's value as a whole number of at most 64 bits."""
    try:
        value = whole(str(text))
    except ValueError:
        raise typer.BadParameter(f"{written(str(text))} is not a whole number") from None
    if abs(value) > LARGEST:
        raise typer.BadParameter(f"{written(str(text))} is too large; a whole number is at most {LARGEST}")
    return value


def _answer_in_json(asked: bool) -> bool:
    """Keep stdout for the answer before the command begins."""
    if asked:
        current().only_json()
    return asked


Json = Annotated[
    bool,
    typer.Option(
        JSON,
        callback=_answer_in_json,
        help='Print one JSON object, and nothing else, on stdout; {"error": ...} if something is wrong.',
    ),
]

Jobs = Annotated[
    int | None,
    typer.Option("--jobs", parser=whole_number, metavar="N", help="Processes; by default at most one for each core."),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", parser=whole_number, metavar="N", help="Only the first N prompts of each set."),
]
Temperature = Annotated[
    float,
    typer.Option("--temperature", parser=number, metavar="T", help="0 is greedy; above it, tokens are drawn."),
]
DrafterShared = Annotated[
    float,
    typer.Option(
        "--drafter-shared",
        parser=number,
        metavar="F",
        help="How many times as long the drafter takes while the target works.",
    ),
]
Raw = Annotated[bool, typer.Option("--raw", help="Leave the chat template out.")]

__all__ = [
    "DEFAULT_DRAFTER",
    "DEFAULT_MODEL",
    "DEFAULT_PLACE",
    "DEFAULT_POLICY",
    "DEFAULT_RULE",
    "DEFAULT_SCHEDULE",
    "Attention",
    "DraftOn",
    "Drafter",
    "DrafterShared",
    "Jobs",
    "Json",
    "Limit",
    "Lossy",
    "Model",
    "OtherMachine",
    "Policy",
    "Profile",
    "Raw",
    "Rule",
    "Schedule",
    "Temperature",
    "TimeAll",
    "TrustRemoteCode",
    "check_other_machine",
    "check_seed",
    "check_time_all",
    "number",
    "processes",
    "resolved",
    "sampling_options",
    "whole_number",
]


def resolved(
    drafter: str,
    policy: str,
    rule: str,
    attention: str | None,
    lossy: bool = False,
    schedule: str = DEFAULT_SCHEDULE,
    draft_on: str = AUTO,
) -> Resolved:
    """The parts of a decoder, made before a model is loaded, so that a typing error costs no waiting.

    Raises:
        LookupError: for an unknown name.
        ValueError: for a bad option, or a rule that does not fit the policy or is lossy where that is not allowed, or a
            place to draft on that this machine has not.
    """
    parts = Parts(
        drafter=drafter,
        policy=policy,
        rule=rule,
        attention=attention,
        lossy=lossy,
        schedule=schedule,
        draft_on=draft_on,
    )
    made = resolve(parts, load_registry())
    made.check_place()
    return made


def check_seed(seed: int | None) -> None:
    """Refuse what is no seed.

    Raises:
        ValueError: if it is negative.
    """
    if seed is not None and seed < 0:
        raise ValueError(f"--seed is {seed}; it must be 0 or more")


def check_other_machine(other_machine: bool, profile: str | None) -> None:
    """Refuse `--other-machine` where there is no profile that it could be about.

    Raises:
        ValueError: if there is none.
    """
    if other_machine and profile is None:
        raise ValueError(
            "--other-machine is given without --profile; it says that a profile of another machine is meant"
        )


def check_time_all(time_all: bool, profile: str | None, untimed: bool = False) -> None:
    """Refuse `--time-all` and `--untimed` where no time is taken, and both together.

    Raises:
        ValueError: if there is no profile, or both are given.
    """
    for given, option in ((time_all, "--time-all"), (untimed, "--untimed")):
        if given and profile is None:
            raise ValueError(f"{option} is given without --profile; the time of policies is only taken with one")
    if time_all and untimed:
        raise ValueError("--time-all and --untimed are given; give one of them")


def check_jobs(jobs: int | None) -> None:
    """Refuse what is no number of processes.

    Raises:
        ValueError: if it is none.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs is {jobs}; it must be at least 1")


def processes(jobs: int | None) -> int:
    """How many are meant: one for each core that this process may use, where nothing is said.

    Raises:
        ValueError: if it is none.
    """
    from talon_core.engine.ahead.place import usable_cores

    check_jobs(jobs)
    return usable_cores() if jobs is None else jobs


def sampling_options(
    temperature: float, top_p: float | None, top_k: int | None, seed: int | None, max_new_tokens: int | None
) -> dict[str, Any]:
    """Options for `Decoder.generate`, those that were given only.

    Raises:
        ValueError: for a value out of its range.
    """
    fault = fault_of_temperature(temperature)
    if fault is not None:
        raise ValueError(f"--temperature is {temperature}; {fault}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"--top-p is {top_p}; it must be above 0 and at most 1")
    if top_k is not None and top_k < 0:
        raise ValueError(f"--top-k is {top_k}; it must be at least 1, or 0 for all tokens")
    check_seed(seed)
    if max_new_tokens is not None and max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens is {max_new_tokens}; it must be at least 1")
    given = {"top_p": top_p, "top_k": top_k, "seed": seed, "max_new_tokens": max_new_tokens}
    return {"temperature": temperature, **{name: value for name, value in given.items() if value is not None}}
