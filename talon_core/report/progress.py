"""Whether a run is over, and the command that goes on with it."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from talon_core.basics import records
from talon_core.bench.methods import PLAIN
from talon_core.bench.results import Results
from talon_core.bench.schedule import Plan
from talon_core.defaults import DEFAULT_MODEL, DEFAULT_PLACE
from talon_core.report.figures import Progress

PROMPTS = "PROMPTS"
"""Stands for the prompts, whose place no manifest tells."""
OPTIONS = ("max_new_tokens", "temperature", "seed", "repetitions", "warmup")


def progress_of(results: Results) -> Progress:
    """How far a run is.

    Of conversations that are decoded turn by turn, each counts as one unit as soon as it has begun: the manifest does
    not say how many turns they have.

    Raises:
        ValueError: if the manifest does not say what is planned.
    """
    settings = results.manifest["settings"]
    try:
        planned = sum(records.whole(each.get("prompts")) for each in settings["sets"])
        repetitions = records.whole(settings.get("repetitions"))
    except ValueError as error:
        raise ValueError(
            f"the manifest in '{results.folder}' does not say how many prompts and repetitions are planned: one of "
            f"these numbers {error}"
        ) from None
    done = {(each.set, each.prompt, each.repetition) for each in results.measurements}
    return Progress(len(done), planned * repetitions, command_of(settings, results.folder))


def command_of(settings: Mapping[str, Any], folder: Path | str, rounds: bool = False) -> str:
    """The command that a run was begun with, and is gone on with.

    Args:
        settings: the manifest's.
        folder: where the results go.
        rounds: keep rounds, whether the run did or not.
    """
    methods = [each["name"] for each in settings["methods"] if each["name"] != PLAIN and "peer" not in each]
    peers = [word for each in settings["methods"] if "peer" in each for word in ("--peer", each["name"])]
    command = ["talon", "bench", "run", *(methods or [PLAIN]), *peers, "--prompts", PROMPTS]
    fields: Any = attrs.fields(Plan)
    for name in OPTIONS:
        if settings.get(name, default := getattr(fields, name).default) != default:
            command += [f"--{name.replace('_', '-')}", str(settings[name])]
    if settings.get("model", DEFAULT_MODEL) != DEFAULT_MODEL:
        command += ["--model", str(settings["model"])]
    if settings.get("attention") is not None:
        command += ["--attention", str(settings["attention"])]
    beside = {each["draft_on"] for each in settings["methods"] if _named_by_the_run(each)} - {DEFAULT_PLACE}
    command += [f"--draft-on={place}" for place in beside]
    limited = [each["prompts"] for each in settings["sets"] if each.get("prompts") != each.get("total")]
    if limited:
        command += ["--limit", str(max(limited))]
    flags = {
        "--turns=all": settings.get("turns") == "all",
        "--raw": settings.get("raw"),
        "--lossy": any(each.get("lossless") is False for each in settings["methods"]),
        "--rounds": rounds or settings.get("rounds"),
    }
    return shlex.join([*command, *(flag for flag, given in flags.items() if given), "--out", str(folder)])


def _named_by_the_run(method: Mapping[str, Any]) -> bool:
    """Whether a method drafts where the run says, as it names no place itself."""
    return "draft_on" in method and not method["name"].endswith(method["draft_on"])


def check_finished(progress: Progress, folder: Path) -> None:
    """Refuse a run that is still to be gone on with.

    Raises:
        ValueError: if it is; the sentence says how far it is, and how to go on.
    """
    if not progress.finished:
        raise ValueError(
            f"the run in '{folder}' has {progress.done} of {progress.planned} prompts; go on with it "
            f"({progress.command}), or report what is there with --unfinished"
        )
