"""The sizes of a decoder layer like the target's own."""

from typing import Any

INNER = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
"""What configurations call the width of an MLP."""


def layer_sizes(model: Any, intermediate: int = 0) -> dict[str, Any]:
    """Entries of a Llama configuration for a layer as large as a causal LM's; an MLP is four times as wide by default.

    Args:
        model: the target, a transformers causal LM.
        intermediate: the width of the layer's MLP; 0 takes the target's.
    """
    text = model.config.get_text_config()
    width, heads = text.hidden_size, text.num_attention_heads
    inner = [size for size in (getattr(text, name, None) for name in INNER) if isinstance(size, int)]
    return {
        "hidden_size": width,
        "intermediate_size": intermediate or (inner[0] if inner else 4 * width),
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(text, "num_key_value_heads", None) or heads,
        "head_dim": getattr(text, "head_dim", None) or width // heads,
        "max_position_embeddings": text.max_position_embeddings,
    }
