"""Processors of several trees that differ in a number alone, called once: each row of scores has its own number."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from talon_core.runtime.transfers import sent
from talon_core.sampling import OF_TRANSFORMERS, Processor, Temperature
from talon_core.tree import FloatArray, IntArray

Called = Callable[[Any, Tensor, Tensor, float], Tensor]
"""`called(warper, scores, column, most)`: `column`, float64, has the number of each row; `most` is the largest."""


def _temperature(_: Any, scores: Tensor, column: Tensor, __: float) -> Tensor:
    column = column.to(scores.dtype)
    # as PyTorch divides by a single number
    return scores * column.reciprocal() if scores.is_cuda else scores / column


def _top_k(warper: Any, scores: Tensor, column: Tensor, most: float) -> Tensor:
    vocab = scores.shape[-1]
    best = scores.topk(min(int(most), vocab))[0]
    least = best.gather(-1, column.long().clamp(max=vocab) - 1)
    return scores.masked_fill(scores < least, warper.filter_value)


def _top_p(warper: Any, scores: Tensor, column: Tensor, _: float) -> Tensor:
    ascending, places = scores.sort()
    removed = ascending.softmax(-1).cumsum(-1) <= (1 - column).to(scores.dtype)
    removed[..., -warper.min_tokens_to_keep :] = False
    return scores.masked_fill(removed.scatter(1, places, removed), warper.filter_value)


def _min_p(warper: Any, scores: Tensor, column: Tensor, _: float) -> Tensor:
    probs = scores.softmax(-1)
    removed = probs < column.to(scores.dtype) * probs.amax(-1, keepdim=True)
    removed.scatter_(-1, probs.topk(min(warper.min_tokens_to_keep, probs.shape[-1])).indices, False)
    return scores.masked_fill(removed, warper.filter_value)


COLUMNS: dict[tuple[str, str], tuple[str, Called]] = {
    (Temperature.__module__, "Temperature"): ("temperature", _temperature),
    (OF_TRANSFORMERS, "TemperatureLogitsWarper"): ("temperature", _temperature),
    (OF_TRANSFORMERS, "TopKLogitsWarper"): ("top_k", _top_k),
    (OF_TRANSFORMERS, "TopPLogitsWarper"): ("top_p", _top_p),
    (OF_TRANSFORMERS, "MinPLogitsWarper"): ("min_p", _min_p),
}
"""By module and class, the attribute that may differ, and what the processor does with another one for each row."""


def column_of(warper: Processor) -> tuple[str, Called] | None:
    """The attribute of a processor that may differ from row to row; None if there is none, or it is no plain number."""
    found = COLUMNS.get((type(warper).__module__, type(warper).__name__))
    return found if found is not None and type(getattr(warper, found[0], None)) in (int, float) else None


def kind_of(warper: Processor) -> Hashable:
    """The same only for processors that do the same to scores, but for the number that may differ."""
    column = column_of(warper)
    differs = None if column is None else column[0]
    attributes = getattr(warper, "__dict__", {})  # one with slots has none
    told = tuple(_told(name, value) for name, value in attributes.items() if name != differs)
    # what has no attributes, as a function, is nobody else's equal
    return type(warper), differs or told or id(warper), told


def _told(name: str, value: Any) -> Hashable:
    return name, type(value), value if isinstance(value, int | float | str) else id(value)


@attrs.frozen(eq=False)
class Columns:
    """The numbers of processors that differ from row to row.

    Attributes:
        numbers: a column for each processor, shape `(rows, warpers)`, float64; 0 for a processor without.
        most: the largest of each column.
    """

    numbers: Tensor
    most: tuple[float, ...]

    def __getitem__(self, rows: "slice | Tensor") -> "Columns":
        """Those of some rows."""
        return attrs.evolve(self, numbers=self.numbers[rows])

    def warp(self, place: int, warper: Processor, ids: Tensor, scores: Tensor) -> Tensor:
        """What the processor at a place makes of scores, shape `(rows, vocab)`."""
        found = column_of(warper)
        if found is None:
            return warper(ids, scores)
        return found[1](warper, scores, self.numbers[:, place, None], self.most[place])


def columns_of(
    warpers: Sequence[Sequence[Processor]], slots: Sequence[int], starts: IntArray, device: torch.device
) -> Columns | None:
    """The numbers of some trees' processors, for all rows of a pass; None where all trees have the same.

    Args:
        warpers: the processors of each tree, the same but for numbers that may differ.
        slots: where the trees are, ascending.
        starts: where the nodes of each slot start, shape `(slots + 1,)`.
        device: where the scores are.
    """
    told: FloatArray = np.array([[number_of(warper) for warper in own] for own in warpers], dtype=np.float64)
    if (told == told[0]).all():
        return None
    numbers = np.zeros((int(starts[-1]), told.shape[1]))
    for slot, own in zip(slots, told, strict=True):
        numbers[starts[slot] : starts[slot + 1]] = own
    return Columns(sent(numbers, device), tuple(told.max(axis=0).tolist()))


def number_of(warper: Processor) -> float:
    """The number of a processor that may differ from row to row; 0 for one without."""
    found = column_of(warper)
    return 0.0 if found is None else float(getattr(warper, found[0]))
