"""What a class has changed of what its bases do."""

from talon_core.basics.overriding import overrides


class Able:
    def width(self) -> int:
        return 1

    def widths(self) -> int:
        return 1


class Changed(Able):
    def width(self) -> int:
        return 2


class Further(Changed):
    pass


class Both(Further):
    def width(self) -> int:
        return 3

    def widths(self) -> int:
        return 3


def test_what_is_defined_below_counts_wherever_below_that_is() -> None:
    changed = {cls.__name__: overrides(cls, ["width"], "widths") for cls in (Able, Changed, Further, Both)}
    assert changed == {"Able": False, "Changed": True, "Further": True, "Both": False}


def test_methods_that_nobody_defines_are_not_changed() -> None:
    assert not overrides(Further, ["finish"], "widths")
    assert not overrides(Able, [], "nothing")
