"""In which form a head's matrices are kept: as its file has them, or in blocks of eight bits."""

import torch
from torch import nn

from talon_core.runtime.blocks import BlockLinear, Blocks, block_sizes, layers_in_blocks
from talon_core.runtime.network import NetworkTarget


def keep_weights(head: nn.Module, form: str, target: NetworkTarget) -> str:
    """Put a head's matrices into blocks of the kind Q8_0, if that was asked for.

    A pass of the head is bound by reading its weights. Blocks of eight bits are half of what bfloat16 takes, and a
    drafter need not be exact: the target checks what it drafts.

    Args:
        head: the network. Matrices whose rows are no whole blocks stay as they are, and so does what is no plain
            linear layer.
        form: "stored", "q8_0" or "auto"; "auto" takes blocks where the target itself has its matrices in blocks, on a
            CPU.
        target: what it drafts for.

    Returns:
        "q8_0" if matrices are in blocks now, otherwise "stored".

    Raises:
        ValueError: if blocks were asked for, and no matrix has rows of whole blocks.
    """
    if form == "stored" or (form == "auto" and not _in_blocks_on_a_cpu(target)):
        return "stored"
    kept = [_keep(parent, name, layer) for parent in [*head.modules()] for name, layer in [*parent.named_children()]]
    if form == "q8_0" and not any(kept):
        raise ValueError(
            "weights is 'q8_0', and the head has no matrix whose rows are whole blocks of that kind; "
            "take weights=stored"
        )
    return "q8_0" if any(kept) else "stored"


def _in_blocks_on_a_cpu(target: NetworkTarget) -> bool:
    return any(layer.data.device.type == "cpu" for _, layer in layers_in_blocks(target.model))


def _keep(parent: nn.Module, name: str, layer: nn.Module) -> bool:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import quantize

    kind = GGMLQuantizationType.Q8_0
    if type(layer) is not nn.Linear or layer.in_features % block_sizes()[kind].numbers:
        return False
    weight = layer.weight.detach()
    numbers = quantize(weight.float().cpu().numpy(), kind)
    blocks = Blocks(torch.from_numpy(numbers).to(weight.device), int(kind), layer.in_features)
    setattr(parent, name, BlockLinear(layer.in_features, layer.out_features, blocks, layer.bias).to(weight.dtype))
    return True
