"""What moves a head's weights: Muon for the matrices of its layers, AdamW for everything else."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

OUTPUT = "lm_head"
"""A head's own output matrix begins as the target's and is moved more carefully."""

OUTPUT_RATE = 0.5
"""Its learning rate, relative to that of all else."""


def optimizer_for(head: nn.Module, learning_rate: float) -> Optimizer:
    """An optimizer for a head's parameters.

    Muon (Jordan et al. 2024), with its steps scaled to the size of AdamW's (Liu et al., arXiv 2502.16982, section 2.2),
    learns more from each text than AdamW does. Where torch has none (before 2.9), AdamW moves the matrices as well.

    Args:
        head: what is trained.
        learning_rate: the highest.
    """
    muon: Any = getattr(torch.optim, "Muon", None)
    matrices: list[nn.Parameter] = []
    output: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in head.named_parameters():
        if parameter.requires_grad:
            is_matrix = parameter.ndim == 2 and muon is not None
            (output if OUTPUT in name else matrices if is_matrix else others).append(parameter)
    groups: list[dict[str, Any]] = []
    if others:
        groups.append({"params": others})
    if output:
        groups.append({"params": output, "lr": OUTPUT_RATE * learning_rate})
    parts: list[Optimizer] = []
    if groups:
        parts.append(AdamW(groups, learning_rate, betas=(0.9, 0.95), weight_decay=0.01))
    if muon is not None and matrices:
        parts.append(muon(matrices, lr=learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"))
    return parts[0] if len(parts) == 1 else Together(parts)


class Together(Optimizer):
    """Several optimizers, each with parameters of its own, as one; schedulers and checkpoints see all their groups.

    Args:
        parts: the optimizers.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self._parts = list(parts)
        super().__init__(self._groups(), {})

    def _groups(self) -> list[dict[str, Any]]:
        return [group for part in self._parts for group in part.param_groups]

    def step(self, closure: Any = None) -> Any:
        """One step of each; `closure` is refused."""
        if closure is not None:
            raise ValueError("several optimizers cannot share a closure; compute the loss before the step")
        for part in self._parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = self._groups()
