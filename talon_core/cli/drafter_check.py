"""What `talon doctor` says about a drafter: what it is, how often it guesses right, and how its passes run."""

import os
from typing import TYPE_CHECKING, Any

from talon_core.cli.overlap_check import measured_overlap
from talon_core.cli.passes_check import drafter_passes
from talon_core.defaults import CHECK_POLICY
from talon_core.drafter import DrafterSpec
from talon_core.engine.checked_drafter import described, files_known
from talon_core.errors import PluginError
from talon_core.plugins.parts import Parts, resolve
from talon_core.plugins.registry import Registry
from talon_core.plugins.specs import build

if TYPE_CHECKING:
    from talon_core.cli.session import Session

CHECK_TOKENS = 64
CHECK_PROMPTS = (
    "Write a short story about a lighthouse keeper.",
    "Explain step by step how rain forms.",
    "Write a Python function that tells whether a number is prime.",
    "Which is larger, 9.9 or 9.11? Give your reasons.",
)


def means_files(given: str, registry: Registry) -> bool:
    """Whether a user means a drafter by the place of its files, and not by a spec; arguments as for `named_drafter`."""
    name = given.partition(":")[0].strip()
    return name not in registry.names("drafter") and (os.path.exists(given) or "/" in given)


def named_drafter(given: str, registry: Registry) -> DrafterSpec:
    """The drafter that a user means by a spec, or by nothing but the place of its files.

    Args:
        given: for example `ngram`, `eagle3:path=some/folder`, or `some/folder`.
        registry: where to look names up, and whom to ask about files.

    Raises:
        LookupError: for an unknown name.
        ValueError: for a bad option, or files that no drafter, or more than one, is made for.
    """
    if means_files(given, registry):
        return drafter_of_files(given, registry)
    spec: DrafterSpec = build(registry, "drafter", given)
    return spec


def drafter_of_files(path: str, registry: Registry) -> DrafterSpec:
    """The drafter that the files of a folder or Hugging Face id are made for; every registered one is asked.

    Raises:
        ValueError: if none knows them, or more than one does.
    """
    found: dict[str, DrafterSpec] = {}
    reasons: list[str] = []
    for name in registry.names("drafter"):
        try:
            spec = files_known(registry.get("drafter", name).cls, path)
        except (ValueError, OSError, PluginError) as error:  # the others are asked all the same
            reasons.append(str(error))
            continue
        if spec is not None:
            found[name] = spec
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise ValueError(
            f"the files of '{path}' fit more than one drafter; give one of {', '.join(found)} with options"
        )
    if reasons:
        raise ValueError("; ".join(dict.fromkeys(reasons)))
    raise ValueError(
        f"no drafter knows the files of '{path}'; give one with its options, such as draft-model:model=FOLDER"
    )


def measured_drafter(spec: DrafterSpec, session: "Session", registry: Registry) -> dict[str, Any]:
    """Open a drafter for a loaded model and decode a few prompts greedily with chains.

    Returns:
        Its `name`, what is `recognised` of its files, whether its own `passes` are repeated without Python, its
        `acceptance`, where `by_depth` is what `acceptance_by_depth` counts, and whether its `overlap` with the target
        can pay, see `Overlap`.

    Raises:
        ValueError: if it does not fit the model.
    """
    from talon_core.bench.measurement import acceptance_by_depth

    decoder = session.decoder(resolve(Parts(spec, CHECK_POLICY), registry))
    assert decoder.drafter is not None
    results = [decoder.generate(prompt, max_new_tokens=CHECK_TOKENS, temperature=0.0) for prompt in CHECK_PROMPTS]
    new_tokens = sum(result.stats.new_tokens for result in results)
    passes = sum(result.stats.target_passes for result in results)
    return {
        "name": spec.name,
        "overlap": measured_overlap(decoder),
        "recognised": described(spec, decoder.drafter),
        "passes": drafter_passes(decoder.target),
        "acceptance": {
            "policy": CHECK_POLICY,
            "prompts": len(results),
            "new_tokens": new_tokens,
            "target_passes": passes,
            "mean_accepted_tokens": new_tokens / passes,
            "by_depth": acceptance_by_depth([round_ for result in results for round_ in result.rounds]),
        },
    }


def drafter_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The report as lines for people: what, and what was found."""
    name, acceptance = report["name"], report["acceptance"]
    rows = [(f"{name}: {what}", _text(value)) for what, value in report["recognised"].items()]
    if report["passes"] is not None:
        rows.append((f"{name}: passes", report["passes"]))
    rows.append(
        (
            f"{name}: acceptance",
            f"{acceptance['mean_accepted_tokens']:.2f} tokens per target pass, {acceptance['policy']}, "
            f"{acceptance['prompts']} prompts",
        )
    )
    for one in acceptance["by_depth"]:
        share, tested = one["accepted"] / one["offered"], one["tested"]
        text = f"accepted in {share:.0%} of {one['offered']} rounds"
        if tested:
            text += f", {one['accepted'] / tested:.0%} of the {tested} where the token before was"
        rows.append((f"{name}: depth {one['depth']}", text))
    rows.append((f"{name}: schedules", report["overlap"]["said"]))
    return rows


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(one)}" for key, one in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_text(one) for one in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
