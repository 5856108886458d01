"""Whether a model is a mixture of experts, and what that costs on a GPU."""

from typing import Any

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""What configurations call the number of experts that a layer chooses from."""


def experts(model: Any) -> int | None:
    """How many experts a transformers causal LM has in a layer; None if it is no mixture of them."""
    config = model.config.get_text_config()
    counts = (getattr(config, name, None) for name in EXPERTS)
    return next((count for count in counts if isinstance(count, int) and count > 1), None)


def about_experts(model: Any) -> str:
    """What a user should know where the passes of a model cannot be captured, as the end of a sentence or nothing."""
    if experts(model) is None:
        return ""
    return (
        "; the experts of a mixture may be what asks: PyTorch's matrix products in groups ask the GPU how many tokens "
        "each expert gets, but for bfloat16 on sm_90 and sm_100. model.set_experts_implementation('batched_mm') never "
        "asks"
    )
