"""Names that somebody may have meant."""

import pytest

from talon_core.basics.suggestions import did_you_mean, nearest
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build


@pytest.mark.parametrize("word", ["TALON", "Talon", "tallon", "TALLON"])
def test_upper_and_lower_case_are_alike(word: str) -> None:
    assert did_you_mean(word, ["static", "talon", "chain"]) == "did you mean 'talon'? "


def test_a_name_is_suggested_as_it_is_written() -> None:
    assert nearest("qwen", ["Qwen3", "gemma"]) == ["Qwen3"]
    assert did_you_mean("nothing like it", ["Qwen3"]) == ""


@pytest.mark.parametrize(
    ("kind", "spec", "meant"),
    [
        ("tree policy", "TALON", "talon"),
        ("rule", "RRS", "rrs"),
        ("drafter", "NGRAM", "ngram"),
        ("recipe", "Eagle3", "eagle3"),
        ("tree policy", "talon:BUDGET=5", "budget"),
    ],
)
def test_every_kind_of_name_is_suggested(kind: str, spec: str, meant: str) -> None:
    with pytest.raises((LookupError, ValueError), match=rf"did you mean '{meant}'\?"):
        build(load_registry(), kind, spec)
