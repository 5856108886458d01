"""transformers' own `generate` with one of its own ways of drafting."""

from typing import TYPE_CHECKING, Any

from talon_core.peer import PeerAnswer, PeerEngine, PeerSetting
from talon_core.peers.packages import version_of

if TYPE_CHECKING:
    from talon_core.request import Request


def drafted_generate(setting: PeerSetting, **options: Any) -> PeerEngine:
    """An engine that decodes with `model.generate` and counts the model's passes.

    Args:
        setting: with the model.
        options: of `generate`: which way of drafting, and how.
    """
    from talon_core.hf.generated import generated

    model = setting.model
    draft: Any = options.get("assistant_model")

    def decode(request: "Request") -> PeerAnswer:
        passes = {"target": 0, "draft": 0}

        def count(which: str) -> Any:
            def counted(*_: object) -> None:
                passes[which] += 1

            return counted

        hooks = [model.register_forward_pre_hook(count("target"))]
        if draft is not None:
            hooks.append(draft.register_forward_pre_hook(count("draft")))
        try:
            tokens = generated(model, request, **options)
        finally:
            for hook in hooks:
                hook.remove()
        return PeerAnswer(tokens, passes["target"], passes["draft"])

    return PeerEngine(decode, version_of("transformers"), setting.dtype, setting.threads, str(model.device))
