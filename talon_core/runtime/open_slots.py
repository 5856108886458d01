"""What a drafter keeps of each slot that is open."""

from typing import TypeVar

from talon_core.target import not_open

T = TypeVar("T")


class OpenSlots(dict[int, T]):
    """By slot what is kept of it, from `Drafter.open` to `Drafter.close`.

    A slot that is not open is an error in words wherever it is looked up (`slots[slot]`) or given up
    (`del slots[slot]`): a `ValueError` that names it, and those that are open.
    """

    def __missing__(self, slot: int) -> T:
        raise not_open(slot, self)

    def __delitem__(self, slot: int) -> None:
        if slot not in self:
            raise not_open(slot, self)
        super().__delitem__(slot)
