"""A device backend by the definitions, in plain PyTorch and slow, for tests on a CPU."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from talon_core.attention import DeviceBackend, PackedLayout


class PlainDevice(DeviceBackend):
    """Computes what its docstrings say, one sequence after the other."""

    name = "plain-device"

    def unavailable(self, device: torch.device, dtype: torch.dtype) -> str | None:
        return None

    def attend_packed(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layout: PackedLayout,
        *,
        scale: float,
        softcap: float | None = None,
        window: int | None = None,
        sinks: Tensor | None = None,
        table: Tensor | None = None,
    ) -> Tensor:
        if table is not None:
            key, value = _in_one_piece(key, table), _in_one_piece(value, table)
        out = query.new_zeros((*query.shape[:2], value.shape[3]))
        group = query.shape[0] // key.shape[1]
        for sequence, (_, nodes, first, start) in enumerate(layout.sequences.tolist()):
            own = slice(start, start + nodes - first)
            seen = _visible(layout, sequence, window)  # (queries, rows)
            rows = seen.shape[1]
            score = query[:, own] @ key[sequence, :, :rows].repeat_interleave(group, 0).transpose(1, 2) * scale
            if softcap is not None:
                score = softcap * torch.tanh(score / softcap)
            score = score.masked_fill(~seen, -torch.inf)
            if sinks is not None:
                score = torch.cat([score, sinks[:, None, None].expand(-1, len(seen), 1)], dim=-1)
            prob = torch.softmax(score, dim=-1)[..., :rows]
            out[:, own] = prob @ value[sequence, :, :rows].repeat_interleave(group, 0)
        return out

    def greedy_walk(
        self, best: Tensor, tokens: Tensor, parents: Tensor, sequences: Tensor, ends: Tensor, longest: int
    ) -> Tensor:
        walks = torch.full((len(sequences), 2 + longest), -1, dtype=torch.int32)
        for walk, (_, nodes, _, start) in zip(walks, sequences.tolist(), strict=True):
            own = slice(start, start + nodes)
            path = [0] if nodes else []
            token = -1
            while path:
                token = int(best[own][path[-1]])
                children = torch.nonzero((parents[own] == path[-1]) & (tokens[own] == token))
                if token in ends.tolist() or not len(children) or len(path) == longest:
                    break
                path.append(int(children[0]))
            walk[: 2 + len(path)] = torch.tensor([len(path), token, *path])
        return walks

    def mover(self, buffers: Sequence[Tensor]) -> Callable[[Tensor, Tensor, Tensor], None]:
        def move(sequences: Tensor, walks: Tensor, table: Tensor) -> None:
            for pages, walk, prefix in zip(table.long(), walks.tolist(), sequences[:, 0].tolist(), strict=True):
                path = torch.tensor(walk[2 : 2 + walk[0]], dtype=torch.int64)
                source, target = prefix + path, prefix + torch.arange(len(path))
                for buffer in buffers:
                    rows = buffer.shape[2]
                    kept = buffer[pages[source // rows], :, source % rows]
                    buffer[pages[target // rows], :, target % rows] = kept

        return move


def _in_one_piece(buffer: Tensor, table: Tensor) -> Tensor:
    """Rows of pages, `(pages, heads, rows, size)`, by sequence: `(batch, heads, capacity, size)`."""
    return buffer[table.long()].transpose(1, 2).flatten(2, 3)


def _visible(layout: PackedLayout, sequence: int, window: int | None) -> Tensor:
    """Which rows of the buffers each query of one sequence sees, from the packed numbers alone."""
    prefix, nodes, first, start = layout.sequences[sequence].tolist()
    words = np.ascontiguousarray(layout.bits[start : start + nodes - first].numpy())
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :nodes].astype(bool)
    seen = np.concatenate([np.ones((len(bits), prefix), dtype=bool), bits], axis=1)
    depths = layout.depths[sequence, :nodes].numpy()
    at = np.concatenate([np.arange(prefix), prefix + depths])
    if window is not None:
        seen &= (prefix + depths[first:])[:, None] - at < window
    return torch.from_numpy(seen)
