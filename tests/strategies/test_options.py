"""Values that only Python can give: refused in the words of the command line, whatever the type."""

import re

import attrs
import numpy as np
import pytest

from talon_core.plugins.registry import load_registry
from talon_strategies import Chain, Talon, talon_policies

OPTIONS = [
    pytest.param(cls, field.alias, type(field.default), id=f"{cls.name}-{field.alias}")
    for cls in talon_policies()
    for field in attrs.fields(cls)
    if field.init and isinstance(field.default, int | float) and not isinstance(field.default, bool)
]
SWITCHES = [
    pytest.param(cls, field.alias, id=f"{cls.name}-{field.alias}")
    for cls in talon_policies()
    for field in attrs.fields(cls)
    if field.init and isinstance(field.default, bool)
]


@pytest.mark.parametrize(("policy", "option", "kind"), OPTIONS)
@pytest.mark.parametrize("value", ["3", None, [3], True, -2.5, float("nan")])
def test_a_value_of_another_type_gets_a_sentence(policy, option, kind, value):
    wanted = "a whole number" if kind is int else "a number"
    sentence = rf"^{option} is .*; it must be {wanted}$" if kind is int or not isinstance(value, float) else option
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the sentence stands before what attrs adds
        policy(**{option: value})
    assert re.search(sentence, caught.value.args[0])


@pytest.mark.parametrize(("policy", "option"), SWITCHES)
@pytest.mark.parametrize("value", ["true", None, [True], 1, -2.5, float("nan")])
def test_a_switch_is_true_or_false(policy, option, value):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the sentence stands before what attrs adds
        policy(**{option: value})
    assert caught.value.args[0] == f"{option} is {value!r}; it must be True or False"


def test_numbers_of_numpy_are_numbers():
    assert Talon(budget=np.int64(12), mu=np.float64(0.5)) == Talon(budget=12, mu=0.5)
    assert Chain(length=np.int64(3)).budget == 4


def test_every_policy_is_looked_at():
    ours = {param.values[0].name for param in OPTIONS}
    registered = load_registry().entries["tree policy"].values()
    without_numbers = {one.name for one in registered if one.plugin == "talon-core:talon-strategies"} - ours
    assert without_numbers == {"speckv", "static", "taps"}
