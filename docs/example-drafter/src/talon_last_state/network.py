"""The head: one attention layer over the last state that the target gave, and the tokens since."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""`attend(query, key, value)`: over the rows that each row may see; each of shape `(batch, heads, rows, head_dim)`."""


class Head(nn.Module):
    """Guesses the state that enters the target's LM head after each row.

    A row is a token, and the newest of the target's states before it. The state is that of the token right before
    (age 0) where the target has read that far; in a draft tree it is of the token before the root, and as old as
    the row is deep.

    Args:
        hidden: width of the target's states and embeddings.
        width: of the head's own.
        heads: of its attention.
        depth: one more than the oldest state that it knows.
    """

    def __init__(self, hidden: int, width: int = 256, heads: int = 4, depth: int = 5) -> None:
        super().__init__()
        self.sizes = {"hidden": hidden, "width": width, "heads": heads, "depth": depth}
        self.heads, self.depth = heads, depth
        self.join = nn.Linear(2 * hidden, width, bias=False)
        self.age = nn.Embedding(depth, width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.mix = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, hidden, bias=False)

    def forward(self, embeddings: Tensor, states: Tensor, ages: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """From rows to what the target's LM head reads.

        Args:
            embeddings: of the tokens, shape `(batch, rows, hidden)`.
            states: of the target, the same shape.
            ages: of the states, shape `(batch, rows)`, int64, below `depth`.
            positions: of the rows, the same.
            attend: attention over the rows that each row may see.

        Returns:
            Shape `(batch, rows, hidden)`.
        """
        x = self.join(torch.cat([_normed(embeddings), _normed(states)], dim=-1)) + self.age(ages)
        parts = self.qkv(_normed(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = attend(_turned(query, positions), _turned(key, positions), value)
        x = x + self.mix(mixed.transpose(1, 2).flatten(2))
        gate, up = self.up(_normed(x)).chunk(2, dim=-1)
        x = x + self.down(F.silu(gate) * up)
        guessed: Tensor = self.out(_normed(x))
        return guessed


def _normed(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


def _turned(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary positions (Su et al., arXiv 2104.09864): x of shape `(batch, heads, rows, head_dim)`."""
    half = x.shape[-1] // 2
    speeds = 10000.0 ** (torch.arange(half, device=x.device) / -half)
    angles = positions[:, None, :, None] * speeds  # (batch, 1, rows, half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def save_head(head: Head, vocabulary: Tensor, path: Path) -> None:
    """Write a head and the target's ids of the tokens that it was trained on, shape `(draft vocab,)`, int64."""
    tensors = {name: tensor.detach().half().contiguous() for name, tensor in head.state_dict().items()}
    save_file({**tensors, "vocabulary": vocabulary.int()}, path, metadata={"sizes": json.dumps(head.sizes)})


def read_head(path: Path) -> tuple[Head, Tensor]:
    """What `save_head` wrote; OSError if there is no such file."""
    with safe_open(path, framework="pt") as file:
        sizes = json.loads(file.metadata()["sizes"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    vocabulary = tensors.pop("vocabulary").long()
    head = Head(**sizes)
    head.load_state_dict(tensors)
    return head, vocabulary
