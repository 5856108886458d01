"""TALON: drafting strategies for lossless speculative decoding.

Everything a plugin's author or a user needs by name; heavy parts are imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

from talon_core.attention import Accelerator, AttentionBackend, TreeLayout
from talon_core.candidates import Candidates
from talon_core.choices import Choices, SeededChoices, enumerate_outcomes
from talon_core.drafter import Committed, Drafter, DrafterSpec, Prompt
from talon_core.errors import PluginError
from talon_core.hookspecs import hookimpl
from talon_core.laws import Laws
from talon_core.loading import load
from talon_core.policy import Growth, TreePolicy
from talon_core.rounds import Round, Stats
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.target import NodeOutputs, Target
from talon_core.tree import TokenTree

if TYPE_CHECKING:
    from talon_core.decoder import Decoder
    from talon_core.hf.generate import TalonGenerate
    from talon_core.hf.target import HFTarget
    from talon_core.request import Chunk, Request, Result
    from talon_core.table import TableTarget

__version__ = "0.1.0"

__all__ = [
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
    "enumerate_outcomes",
    "hookimpl",
    "load",
]

_LAZY = {
    "Chunk": "talon_core.request",
    "Decoder": "talon_core.decoder",
    "Request": "talon_core.request",
    "Result": "talon_core.request",
    "HFTarget": "talon_core.hf.target",
    "TableTarget": "talon_core.table",
}
"""Names whose modules need torch or transformers, which take seconds to import."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'talon_core' has no attribute '{name}'")


def as_generate(
    *,
    drafter: Any = None,
    policy: Any = None,
    rule: Any = None,
    attention: Any = None,
    accelerate: bool | str = True,
    seed: int | None = None,
    stop_strings: str | list[str] | None = None,
    tokenizer: Any = None,
) -> "TalonGenerate":
    """TALON for `model.generate(..., custom_generate=as_generate(...))`, with transformers' own options.

    Streamers, stopping criteria and logits processors work as they do without it. The model is not changed.

    Args:
        drafter: as for `load`, and so are `policy`, `rule`, `attention` and `accelerate`.
        policy: as for `load`.
        rule: as for `load`.
        attention: as for `load`.
        accelerate: as for `load`.
        seed: for sampling; None takes torch's default generator.
        stop_strings: what ends the text, to be given here and not to `generate`: that drops its own argument
            `tokenizer` where it is given a `custom_generate`, and then refuses its own `stop_strings`.
        tokenizer: the model's tokenizer, which `stop_strings` need.

    Raises:
        ValueError: for stop strings without a tokenizer, or that are no texts.
    """
    from talon_core.hf.frontend import stop_criterion
    from talon_core.hf.generate import TalonGenerate
    from talon_core.loading import Parts

    given = {"drafter": drafter, "policy": policy, "rule": rule, "attention": attention}
    parts = Parts(**{name: value for name, value in given.items() if value is not None}, accelerate=accelerate)
    return TalonGenerate(parts, seed, stop_criterion(tokenizer, stop_strings))
