"""Parts within parts, as an option of a part names them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.plugins.nested import part_spec, parts_in
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import as_part, build, parse_spec
from talon_strategies import Chain, DynamicDepth, Talon


@pytest.mark.parametrize(
    ("of", "parts"),
    [
        ("ngram", ["ngram"]),
        ("auto+ngram[max_match=8;least=0.1]", ["auto", "ngram[max_match=8;least=0.1]"]),
        ("eagle3[layers=2+15+27]+pld", ["eagle3[layers=2+15+27]", "pld"]),
        ("taps[of=talon[mu=0.1]+x;model=m]+chain[]", ["taps[of=talon[mu=0.1]+x;model=m]", "chain[]"]),
    ],
)
def test_parts_are_split_outside_of_brackets(of: str, parts: list[str]) -> None:
    assert parts_in(of) == parts


@pytest.mark.parametrize("of", ["", "+", "a+", "+a", "[x=1]", "a[", "a]", "a[b", "a]b[", "a[x=1]b", "a[x][y]", "a[[]"])
def test_what_is_not_parts_is_none(of: str) -> None:
    assert parts_in(of) is None


@pytest.mark.parametrize(
    ("part", "spec"),
    [
        ("talon", "talon"),
        ("talon[]", "talon"),
        ("talon[budget=16;mu=0.1]", "talon:budget=16,mu=0.1"),
        ("ddd[checked=1;2;3;depth=4]", "ddd:checked=1;2;3,depth=4"),
        ("taps[of=talon[budget=16;mu=0.1];model=m]", "taps:of=talon[budget=16;mu=0.1],model=m"),
        ("static[0;1]", "static:0;1"),
    ],
)
def test_a_part_is_a_spec_in_brackets(part: str, spec: str) -> None:
    assert part_spec(part) == spec


@pytest.mark.parametrize("made", [Talon(budget=16, mu=0.1), Chain(), DynamicDepth(checked=(1, 2), depth=4)])
def test_an_object_is_named_as_it_is_read(made: object) -> None:
    assert build(load_registry(), "tree policy", part_spec(as_part(made))) == made


@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["1", "2;3", "x[y=1;z=2]+w", "-0.5"]), max_size=4))
def test_options_come_out_as_they_went_in(options: dict[str, str]) -> None:
    part = f"name[{';'.join(f'{name}={value}' for name, value in options.items())}]"
    assert parts_in(part) == [part]
    assert parse_spec(part_spec(part)) == ("name", options)
