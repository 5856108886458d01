"""TALON: drafting strategies for lossless speculative decoding.

Everything a plugin's author or a user needs by name; each is imported when it is first used.
"""

from typing import TYPE_CHECKING, Any

from talon_core.lazy import import_on_use

if TYPE_CHECKING:
    from talon_core.attention import Accelerator, AttentionBackend, TreeLayout
    from talon_core.candidates import Candidates
    from talon_core.choices import Choices, SeededChoices, enumerate_outcomes
    from talon_core.decoder import Decoder
    from talon_core.drafter import FINAL_STATE, Committed, Drafter, DrafterSpec, Prompt
    from talon_core.errors import PluginError
    from talon_core.hf.generate import TalonGenerate
    from talon_core.hf.target import HFTarget
    from talon_core.hookspecs import hookimpl
    from talon_core.laws import Laws
    from talon_core.loading import build, load
    from talon_core.policy import Growth, TreePolicy
    from talon_core.request import Chunk, Request, Result
    from talon_core.rounds import Round, Stats
    from talon_core.rule import AcceptanceRule, Accepted
    from talon_core.table import TableTarget
    from talon_core.target import NodeOutputs, Target
    from talon_core.tree import TokenTree

__version__ = "0.1.0"

__all__ = [
    "FINAL_STATE",
    "Accelerator",
    "AcceptanceRule",
    "Accepted",
    "AttentionBackend",
    "Candidates",
    "Choices",
    "Chunk",
    "Committed",
    "Decoder",
    "Drafter",
    "DrafterSpec",
    "Growth",
    "HFTarget",
    "Laws",
    "NodeOutputs",
    "PluginError",
    "Prompt",
    "Request",
    "Result",
    "Round",
    "SeededChoices",
    "Stats",
    "TableTarget",
    "Target",
    "TokenTree",
    "TreeLayout",
    "TreePolicy",
    "as_generate",
    "build",
    "enumerate_outcomes",
    "hookimpl",
    "load",
]

import_on_use(
    __name__,
    {
        "attention": ["Accelerator", "AttentionBackend", "TreeLayout"],
        "candidates": ["Candidates"],
        "choices": ["Choices", "SeededChoices", "enumerate_outcomes"],
        "decoder": ["Decoder"],
        "drafter": ["FINAL_STATE", "Committed", "Drafter", "DrafterSpec", "Prompt"],
        "errors": ["PluginError"],
        "hf.target": ["HFTarget"],
        "hookspecs": ["hookimpl"],
        "laws": ["Laws"],
        "loading": ["build", "load"],
        "policy": ["Growth", "TreePolicy"],
        "request": ["Chunk", "Request", "Result"],
        "rounds": ["Round", "Stats"],
        "rule": ["AcceptanceRule", "Accepted"],
        "table": ["TableTarget"],
        "target": ["NodeOutputs", "Target"],
        "tree": ["TokenTree"],
    },
)


def as_generate(
    *,
    drafter: Any = None,
    policy: Any = None,
    rule: Any = None,
    attention: Any = None,
    accelerate: bool | str = True,
    lossy: bool = False,
    seed: int | None = None,
    stop_strings: str | list[str] | None = None,
    tokenizer: Any = None,
) -> "TalonGenerate":
    """TALON for `model.generate(..., custom_generate=as_generate(...))`, with transformers' own options.

    Streamers, stopping criteria and logits processors work as they do without it. The model is not changed. What
    `generate` returns has no place for a mark; `lossless` of the object says whether it is the target's own.

    Args:
        drafter: as for `load`, and so are `policy`, `rule`, `attention`, `accelerate` and `lossy`.
        policy: as for `load`.
        rule: as for `load`.
        attention: as for `load`.
        accelerate: as for `load`.
        lossy: as for `load`.
        seed: for sampling; None takes torch's default generator.
        stop_strings: what ends the text, to be given here and not to `generate`: that drops its own argument
            `tokenizer` where it is given a `custom_generate`, and then refuses its own `stop_strings`.
        tokenizer: the model's tokenizer, which `stop_strings` need.

    Raises:
        LookupError: for an unknown name.
        ValueError: for stop strings without a tokenizer, or that are no texts; for a bad option, or a rule that does
            not fit the policy or is lossy where that is not allowed.
    """
    from talon_core.hf.frontend import stop_criterion
    from talon_core.hf.generate import TalonGenerate
    from talon_core.loading import Parts, check_parts
    from talon_core.registry import load_registry

    given = {"drafter": drafter, "policy": policy, "rule": rule, "attention": attention}
    asked = {name: value for name, value in given.items() if value is not None}
    parts = Parts(**asked, accelerate=accelerate, lossy=lossy)
    check_parts(parts, load_registry())
    return TalonGenerate(parts, seed, stop_criterion(tokenizer, stop_strings))
