"""Which of the target's tokens a drafter with a vocabulary of its own chooses from."""

import torch
from torch import Tensor

from talon_drafters.checkpoints.files import Checkpoint


def draft_vocabulary(checkpoint: Checkpoint, vocab_size: int) -> Tensor | None:
    """The target's id of each of the drafter's tokens.

    Two tensors say so: `d2t` or `draft_id_to_target_id`, whose entry `i` is the target's id minus `i` (EAGLE-3's), and
    `token_map`, whose entries are the ids themselves (vLLM's Medusa).

    Args:
        checkpoint: the drafter's files.
        vocab_size: the target's.

    Returns:
        Shape `(draft vocab,)`, int64; None if the drafter chooses from all tokens.

    Raises:
        ValueError: if the tensor is no such list, or an id is no token of the target or comes twice.
    """
    offsets = ("d2t", "draft_id_to_target_id")
    name = next((name for name in (*offsets, "token_map") if name in checkpoint.tensors), None)
    if name is None:
        return None
    ids = checkpoint.tensor(name, -1)
    if ids.is_floating_point() or ids.dtype == torch.bool or not len(ids):
        raise checkpoint.error(f"has {name} of type {ids.dtype} with {len(ids)} entries; it must hold whole numbers")
    ids = ids.long() + (torch.arange(len(ids)) if name in offsets else 0)
    if ids.min() < 0 or ids.max() >= vocab_size:
        wrong = int(ids.min() if ids.min() < 0 else ids.max())
        raise checkpoint.error(f"maps a token to {wrong} in {name}; the target has tokens 0 to {vocab_size - 1}")
    if len(set(ids.tolist())) != len(ids):
        raise checkpoint.error(f"maps two tokens to the same one in {name}; each of the target's may come once")
    return ids


def as_offsets(vocabulary: Tensor) -> Tensor:
    """A drafter's vocabulary as `d2t` holds it; both have shape `(draft vocab,)`, int64."""
    return vocabulary.cpu() - torch.arange(len(vocabulary))
