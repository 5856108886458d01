"""Tokens of many rows of scores at once, on the device of the scores: warped, and then drawn or the best."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from talon_core.choices import BLOCK
from talon_core.runtime.columns import Columns
from talon_core.target import NO_TOKEN, NodeDraws
from talon_core.tree import FloatArray, IntArray

MOST_SCORES = 1 << 24
"""Scores that are warped at a time: a law of so many takes 128 MiB in float64, and sorting them a few times as much."""


def draw_tokens(scores: Tensor, numbers: Tensor) -> Tensor:
    """Draw a token from each row's law, the softmax of its scores in float64, by inversion.

    As `SeededChoices` does, it finds the block of `BLOCK` tokens first and then the token: the first one up to which
    the law adds up to more than the number's share of its sum. What has probability 0 never comes out, in whatever
    order a device adds up.

    Args:
        scores: shape `(rows, vocab)`, of any floating-point type.
        numbers: shape `(rows,)`, float64, in [0, 1).

    Returns:
        Tokens, shape `(rows,)`, int64; `NO_TOKEN` where the scores hold NaN or infinity, or forbid every token.
    """
    missing = -scores.shape[1] % BLOCK
    if missing:
        scores = F.pad(scores, (0, missing), value=-torch.inf)
    return draw_from(torch.softmax(scores.double(), dim=-1), numbers)


def draw_from(laws: Tensor, numbers: Tensor) -> Tensor:
    """As `draw_tokens`, from the laws themselves.

    Args:
        laws: shape `(rows, vocab)`, float64, not negative.
        numbers: shape `(rows,)`, float64, in [0, 1).

    Returns:
        Tokens, shape `(rows,)`, int64; `NO_TOKEN` where a law sums to nothing, or holds NaN.
    """
    missing = -laws.shape[1] % BLOCK
    if missing:
        laws = F.pad(laws, (0, missing))
    law = laws.view(len(laws), -1, BLOCK)  # (rows, blocks, BLOCK)
    sums = law.sum(-1)
    upto = sums.cumsum(-1)  # (rows, blocks)
    total = upto[:, -1:]
    threshold = numbers[:, None] * total
    block = _first_above(upto, sums, threshold)  # (rows, 1)
    before = torch.where(block > 0, upto.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = law.gather(1, block[:, :, None].expand(-1, 1, BLOCK))[:, 0]  # (rows, BLOCK)
    token = block * BLOCK + _first_above(inside.cumsum(-1), inside, threshold - before)
    return torch.where(total > 0, token, NO_TOKEN)[:, 0]


def _first_above(upto: Tensor, parts: Tensor, threshold: Tensor) -> Tensor:
    """Where sums exceed a threshold first, or, if rounding lets none, the last part that is not 0; shape `(rows, 1)`.

    Args:
        upto: the parts added up, shape `(rows, parts)`; rounding may make them fall a little.
        parts: at least 0, same shape.
        threshold: shape `(rows, 1)`.
    """
    count = parts.shape[1]
    places = torch.arange(count, device=parts.device)
    first = torch.where((upto > threshold) & (parts > 0), places, count).amin(-1, keepdim=True)
    last = torch.where(parts > 0, places, 0).amax(-1, keepdim=True)
    return torch.minimum(first, last)


def take_tokens(scores: Tensor, draws: NodeDraws, numbers: Tensor, columns: Columns | None = None) -> Tensor:
    """Warp scores and take a token of each row, some rows at a time.

    Args:
        scores: raw, shape `(rows, vocab)`.
        draws: how they are warped, and whether tokens are drawn.
        numbers: to draw with, shape `(rows,)`, float64, in [0, 1).
        columns: as in `warped`.

    Returns:
        Tokens, shape `(rows,)`, int64, as those of `draw_tokens`.
    """
    rows = max(1, MOST_SCORES // scores.shape[1])
    parts = [slice(start, start + rows) for start in range(0, len(scores), rows)]
    return torch.cat([_taken(scores[part], draws, numbers[part], columns and columns[part]) for part in parts])


def _taken(scores: Tensor, draws: NodeDraws, numbers: Tensor, columns: Columns | None) -> Tensor:
    scores = warped(scores, draws, columns)
    return scores.argmax(-1) if draws.numbers is None else draw_tokens(scores, numbers)


class WarperError(Exception):
    """One of the user's processors has raised an error."""


def warped(scores: Tensor, draws: NodeDraws, columns: Columns | None = None) -> Tensor:
    """Raw scores as tokens are taken by them, shape `(rows, vocab)`, at least float32.

    Args:
        scores: raw, likewise.
        draws: how they are warped.
        columns: the numbers of each row, where processors differ in them from row to row.

    Raises:
        WarperError: if a processor raises an error, of which it is the reason.
    """
    if scores.dtype in (torch.bfloat16, torch.float16):
        scores = scores.float()
    none: Any = scores.new_empty((len(scores), 0), dtype=torch.int64)
    for place, warp in enumerate(draws.warpers):
        try:
            scores = warp(none, scores) if columns is None else columns.warp(place, warp, none, scores)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise WarperError(str(error)) from error
    return scores


NOT_DRAWN = -1.0
"""The number of a node that nothing is drawn for."""


def numbers_of(starts: IntArray, drawn: Mapping[int, NodeDraws]) -> FloatArray:
    """The numbers of all nodes of a pass, shape `(queries,)`; `NOT_DRAWN` in trees without, and in those with tests.

    Args:
        starts: where the nodes of each slot start, shape `(slots + 1,)`.
        drawn: by slot, for whole trees.
    """
    numbers: FloatArray = np.full(int(starts[-1]), NOT_DRAWN)
    for slot, draws in drawn.items():
        if draws.numbers is not None and draws.tests is None:
            numbers[starts[slot] : starts[slot + 1]] = draws.numbers
    return numbers


def as_words(numbers: FloatArray) -> tuple[IntArray, IntArray]:
    """Numbers as they are sent, as a pass is sent numbers of 32 bits: the bits of each in two, shape `(numbers,)`."""
    words = np.ascontiguousarray(numbers, dtype="<f8").view("<i4")
    low, high = words.reshape(-1, 2).T.astype(np.int64)
    return low, high


def of_words(low: Tensor, high: Tensor) -> Tensor:
    """What was sent as `as_words` says, shape `(numbers,)`, float64; the words are int32."""
    return torch.stack((low, high), dim=-1).view(torch.float64)[:, 0]
