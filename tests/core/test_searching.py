"""What policies say of the options that can be searched."""

import attrs
import pytest

import talon_core
from talon_core import searched, searched_among
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import option_fields, spelled
from talon_core.searching import KEY, Among, Range, as_written

SAID = [
    (name, option, field.metadata[KEY])
    for name, entry in load_registry().entries["tree policy"].items()
    for option, field in option_fields(entry).items()
    if KEY in field.metadata
]


@pytest.mark.parametrize(("name", "option", "values"), SAID)
def test_a_built_in_policy_takes_both_ends_of_what_it_says(name: str, option: str, values: Range) -> None:
    for end in (values.low, values.high):
        made = talon_core.build("tree policy", f"{name}:{option}={end}")
        assert getattr(made, option) == end


def test_every_built_in_policy_that_can_be_tuned_says_something() -> None:
    knobless = {"speckv", "static", "talon-cost", "talon-cost-sampled", "taps"}
    ours = set(load_registry().names("tree policy")) - knobless
    assert ours <= {name for name, _, _ in SAID}


@pytest.mark.parametrize("ends", [(2, 1), (1, 1), (float("nan"), 1), (0, float("inf")), ("1", 2), (True, 2)])
def test_what_is_no_range_is_refused(ends: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        searched(*ends)


def test_factors_need_numbers_above_0() -> None:
    searched(0, 1)
    with pytest.raises(ValueError, match="where factors count, the first number must be above 0"):
        searched(0, 1, log=True)


def test_values_are_written_as_in_a_spec() -> None:
    assert searched_among(True, 2, "word", None) == {KEY: Among(("true", "2", "word", "none"))}
    for values in ((), ("one",), ("twice", "twice")):
        with pytest.raises(ValueError, match="two values or more"):
            searched_among(*values)


@pytest.mark.parametrize(
    "spec", ["specinfer:widths=3;2;1", "sequoia:follows=false", "talon:mu=0.1", "static:shape=0;1;0.0"]
)
def test_a_value_that_is_written_is_read_as_the_same(spec: str) -> None:
    made = talon_core.build("tree policy", spec)
    assert spelled(made) == spec
    for option in attrs.fields(type(made)):
        if option.init:
            text = as_written(getattr(made, option.name))
            assert talon_core.build("tree policy", f"{made.name}:{option.alias}={text}")


def test_an_option_with_the_metadata_is_an_option_as_before() -> None:
    @attrs.frozen
    class Some:
        length: int = attrs.field(default=3, metadata=searched(1, 9))

    assert Some(4).length == 4
    assert attrs.fields(Some).length.metadata[KEY] == Range(1, 9)
