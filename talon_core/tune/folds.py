"""Prompts dealt out to folds, so that each has some of every set."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

Thing = TypeVar("Thing")


def dealt(sets: Mapping[Any, Sequence[Thing]], folds: int, seed: int) -> list[list[Thing]]:
    """Deal the texts of each set out to folds, in an order of their own; no two folds differ by more than one of a set.

    Args:
        sets: the texts of each set, by what it is called.
        folds: how many, at least 2.
        seed: of the order.

    Raises:
        ValueError: if a set has fewer texts than there are folds; the sentence names it.
    """
    found: list[list[Thing]] = [[] for _ in range(folds)]
    rng, first = np.random.default_rng(seed), 0
    for name, texts in sets.items():
        if len(texts) < folds:
            raise ValueError(
                f"the set '{name}' has {len(texts)} text{'s' * (len(texts) != 1)}, fewer than {folds} folds; "
                + (f"give --folds {len(texts)}, or record more" if len(texts) > 1 else "record at least two")
            )
        for place, number in enumerate(rng.permutation(len(texts)).tolist()):
            found[(first + place) % folds].append(texts[number])
        first += len(texts)  # so that what is left over does not come to the first folds alone
    return found
