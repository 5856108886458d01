"""What rows of keys and values take, and as how many of a target's those of a drafter count."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from talon_core.runtime.network import NetworkTarget


def row_bytes(config: Any, dtype: "torch.dtype") -> int:
    """Bytes of the keys and values of one token in all layers.

    Args:
        config: of a text model in the form of transformers.
        dtype: in which it computes.
    """
    heads = int(config.num_attention_heads)
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    return 2 * int(config.num_hidden_layers) * kv_heads * head_dim * dtype.itemsize


def in_rows_of(target: "NetworkTarget", rows: int, bytes_each: int) -> int:
    """As many rows of a target as take as many bytes as some rows of another cache, rounded up.

    Args:
        target: whose rows are counted.
        rows: of the other cache.
        bytes_each: of one of them, in all its layers.
    """
    return -(-rows * bytes_each // row_bytes(target.model.config.get_text_config(), target.model.dtype))
