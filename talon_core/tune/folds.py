"""Prompts dealt out to folds, so that each has some of every set."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from talon_core.basics.numerals import counted

Thing = TypeVar("Thing")


def dealt(sets: Mapping[Any, Sequence[Thing]], folds: int, seed: int) -> list[list[Thing]]:
    """Deal the prompts of each set out to folds, in an order of its own; no two folds differ by more than one of a set.

    Args:
        sets: the prompts of each set, by what it is called.
        folds: how many, at least 2.
        seed: of the order.

    Raises:
        ValueError: if a set has fewer prompts than there are folds; the sentence names it.
    """
    found: list[list[Thing]] = [[] for _ in range(folds)]
    rng, first = np.random.default_rng(seed), 0
    for name, prompts in sets.items():
        if len(prompts) < folds:
            raise ValueError(
                f"the set '{name}' has {counted(len(prompts), 'prompt')}, fewer than {folds} folds; "
                + (f"give --folds {len(prompts)}, or record more" if len(prompts) > 1 else "record at least two")
            )
        for place, number in enumerate(rng.permutation(len(prompts)).tolist()):
            found[(first + place) % folds].append(prompts[number])
        first += len(prompts)  # so that what is left over does not come to the first folds alone
    return found
