"""What rows of keys and values take, and as how many of a target's those of a drafter count."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from talon_core.basics.memory import device_memory

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


def most_rows(devices: Sequence["torch.device"], bytes_each: int) -> int | None:
    """Rows of keys and values that the memory of devices would hold if there were nothing else; None if nobody tells.

    Weights are not taken off: on a host they may be pages of a file, which are read again when they are needed, and
    what quantised ones take a tensor does not always say.

    Args:
        devices: that hold the rows, each some of the layers.
        bytes_each: of a row in all layers; 0 if not known.
    """
    memory = [device_memory(device) for device in devices]
    if None in memory or not bytes_each:
        return None
    return max(1, sum(filter(None, memory)) // bytes_each)


def in_rows_of(target: "NetworkTarget", rows: int, bytes_each: int) -> int:
    """As many rows of a target as take as many bytes as some rows of another cache, rounded up.

    Args:
        target: whose rows are counted.
        rows: of the other cache.
        bytes_each: of one of them, in all its layers.
    """
    own = target.own_executor().cache.row_bytes  # which is what they take, once a pass has been run
    own = own or row_bytes(target.model.config.get_text_config(), target.model.dtype)
    return -(-rows * bytes_each // own)
