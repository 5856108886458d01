"""Iterators that several go through."""

from collections.abc import Iterator
from itertools import tee
from typing import TypeVar

T = TypeVar("T")


def as_often_as_wanted(items: Iterator[T]) -> Iterator[T]:
    """An iterator each `copy` of which gives all of these, which are made no sooner than one of them comes to them."""
    (kept,) = tee(items, 1)
    return kept
