"""Values that only Python can give: refused in the words of the command line, whatever the type."""

import re
from pathlib import Path

import attrs
import numpy as np
import pytest

from talon_core.plugins.parts import built
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import spelled
from talon_drafters import Datastore, DraftModel, Eagle3
from talon_strategies import Chain, Talon

OURS = [
    entry.cls
    for kind in ("tree policy", "drafter", "rule", "schedule", "recipe", "peer")
    for entry in load_registry().entries[kind].values()
    if entry.plugin.startswith("talon-core:") and attrs.has(entry.cls)
]
OPTIONS = [
    pytest.param(cls, field.alias, type(field.default), id=f"{cls.name}-{field.alias}")
    for cls in OURS
    for field in attrs.fields(cls)
    if field.init and isinstance(field.default, int | float) and not isinstance(field.default, bool)
]
SWITCHES = [
    pytest.param(cls, field.alias, id=f"{cls.name}-{field.alias}")
    for cls in OURS
    for field in attrs.fields(cls)
    if field.init and isinstance(field.default, bool)
]


def needed(part):
    """What cannot be left out besides the option that is tried."""
    if part is DraftModel:
        return {"skip": "1"}
    given = {"target": "a-model", "out": Path("out"), "path": "index", "model": "a-model", "head": "a-head"}
    fields = [field.alias for field in attrs.fields(part) if field.init and field.default is attrs.NOTHING]
    return {name: given[name] for name in fields}


@pytest.mark.parametrize(("part", "option", "kind"), OPTIONS)
@pytest.mark.parametrize("value", ["3", None, [3], True, -2.5, float("nan")])
def test_a_value_of_another_type_gets_a_sentence(part, option, kind, value):
    wanted = "a whole number" if kind is int else "a number"
    sentence = rf"^{option} is .*; it must be {wanted}$" if kind is int or not isinstance(value, float) else option
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the sentence stands before what attrs adds
        part(**needed(part) | {option: value})
    assert re.search(sentence, caught.value.args[0])


@pytest.mark.parametrize(("part", "option"), SWITCHES)
@pytest.mark.parametrize("value", ["true", None, [True], 1, -2.5, float("nan")])
def test_a_switch_is_true_or_false(part, option, value):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the sentence stands before what attrs adds
        part(**needed(part) | {option: value})
    assert caught.value.args[0] == f"{option} is {value!r}; it must be True or False"


def test_numbers_of_numpy_are_numbers():
    assert Talon(budget=np.int64(12), mu=np.float64(0.5)) == Talon(budget=12, mu=0.5)
    assert Chain(length=np.int64(3)).budget == 4


@pytest.mark.parametrize(
    ("cls", "option", "value", "sentence"),
    [
        (DraftModel, "skip", 5, "skip is 5; it must be whole numbers"),
        (DraftModel, "skip", [1, "2"], "it must be whole numbers"),
        (DraftModel, "skip", "0-99999999999", r"skip is '0-99999999999'; it must be layers such as 4-9\+12"),
        (Eagle3, "layers", 5, "layers is 5; it must be whole numbers"),
        (Eagle3, "layers", [1.5], r"layers is \(1.5,\); it must be whole numbers"),
        (Datastore, "path", 5, "path is 5; it must be text"),
    ],
)
def test_lists_and_texts_of_another_type_get_a_sentence(cls, option, value, sentence):
    with pytest.raises(ValueError, match=sentence):
        cls(**{option: value})


@pytest.mark.parametrize("spec", ["draft-model:skip=8-9+12", "eagle3:layers=2+15+27"])
def test_lists_of_drafters_can_be_read_as_they_are_spelled(spec):
    made = built(load_registry(), "drafter", spec)
    assert built(load_registry(), "drafter", spelled(made)) == made


def test_lists_may_be_given_by_what_can_be_read_once():
    assert DraftModel(skip=map(int, ["5", "4"])).skip == (4, 5)
    assert Eagle3(layers=(number for number in (2, 15))).layers == (2, 15)


def test_a_path_is_one_in_either_form():
    assert Datastore(Path("index")) == Datastore("index")


def test_every_policy_is_looked_at():
    ours = {param.values[0].name for param in OPTIONS}
    registered = load_registry().entries["tree policy"].values()
    without_numbers = {one.name for one in registered if one.plugin == "talon-core:talon-strategies"} - ours
    assert without_numbers == {"speckv", "static", "taps"}
    assert {"ngram", "pld", "lookahead", "hybrid", "conflayers", "datastore", "cached", "pearl", "branch"} <= ours
    assert {"eagle3", "hydra", "medusa", "llama-cpp", "assistant", "prompt-lookup"} <= ours
