"""Spec strings: text in, an object or one clear sentence out."""

from typing import TYPE_CHECKING, ClassVar

import attrs
import pytest
from attrs import validators as v

import talon_core
from talon_core.errors import PluginError
from talon_core.hookspecs import hookimpl
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build, describe_options, parse_spec
from talon_core.policy import Growth, TreePolicy
from talon_strategies import Talon

if TYPE_CHECKING:
    from nowhere import Nothing


@attrs.frozen
class Options(TreePolicy):
    """One option of each type."""

    name = "options"
    budget: int = attrs.field(default=8, validator=v.ge(2))
    rate: float = attrs.field(default=0.5, validator=[v.gt(0), v.le(1)])
    greedy: bool = False
    mode: str = attrs.field(default="deep", validator=v.in_(["deep", "wide"]))
    depth: int | None = attrs.field(default=None, validator=v.optional(v.instance_of(int)))
    limit: float | None = 2.5
    count_or_auto: int | str = "auto"
    letters: str = attrs.field(default="ab", validator=v.max_len(3))
    code: str = attrs.field(default="a1", validator=v.matches_re("[a-z][0-9]"))
    twice: int = attrs.field(factory=lambda: 3)
    _hidden: int = 1
    both: int = attrs.field(init=False, default=4)
    shared: ClassVar[int] = 9

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(1))


@attrs.frozen
class Demanding(Options):
    name = "demanding"
    model: str = attrs.field(kw_only=True)


@attrs.frozen
class Derived(Options):
    name = "derived"
    half: int = attrs.field()

    @half.default
    def _half(self):
        return self.budget // 2


@attrs.frozen
class Unresolvable(Options):
    name = "unresolvable"
    what: "Nothing | None" = None


def _explode(given):
    raise KeyError("boom")


@attrs.frozen
class Exploding(Options):
    name = "exploding"
    fuse: str = attrs.field(default="", converter=_explode)


class Plugin:
    @staticmethod
    @hookimpl
    def talon_policies():
        return [Options, Demanding, Derived, Unresolvable, Exploding]


REGISTRY = load_registry([("mine:first", lambda: Plugin)])


def made(spec):
    return build(REGISTRY, "tree policy", spec)


@pytest.mark.parametrize(
    ("spec", "name", "options"),
    [
        ("talon", "talon", {}),
        ("talon:", "talon", {}),
        (" talon : budget = 60 , mu=0.03 ", "talon", {"budget": "60", "mu": "0.03"}),
        ("talon:top-k=4,", "talon", {"top_k": "4"}),
        ("static:shape=0;1;0.0", "static", {"shape": "0;1;0.0"}),
        ("draft-model:model=/a/b=c:d", "draft-model", {"model": "/a/b=c:d"}),
        ("ngram:text=", "ngram", {"text": ""}),
    ],
)
def test_a_spec_is_a_name_and_options(spec, name, options):
    assert parse_spec(spec) == (name, options)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("talon:60", "'60' in 'talon:60' is no option; options are written name:option=value,option=value"),
        ("talon:=60", "'=60' in 'talon:=60' is no option"),
        ("talon:mu=1,mu=2", "option 'mu' is given twice in 'talon:mu=1,mu=2'"),
        ("talon:top-k=1,top_k=2", "option 'top_k' is given twice"),
    ],
)
def test_a_malformed_spec_is_refused_in_words(spec, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_spec(spec)


def test_without_options_the_defaults_hold():
    assert made("options") == Options()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("budget=12", Options(budget=12)),
        ("rate=1", Options(rate=1.0)),
        ("rate=1e-3", Options(rate=1e-3)),
        ("depth=3", Options(depth=3)),
        ("depth=none", Options(depth=None)),
        ("limit=None", Options(limit=None)),
        ("limit=7", Options(limit=7.0)),
        ("mode=wide", Options(mode="wide")),
        ("count-or-auto=5", Options(count_or_auto=5)),
        ("count_or_auto=auto", Options(count_or_auto="auto")),
        ("hidden=2", Options(hidden=2)),
    ],
)
def test_an_options_text_becomes_its_type(spec, expected):
    got = made(f"options:{spec}")
    assert got == expected
    assert [type(value) for value in attrs.astuple(got)] == [type(value) for value in attrs.astuple(expected)]


@pytest.mark.parametrize(("text", "value"), [("true", True), ("Yes", True), ("1", True), ("off", False), ("0", False)])
def test_truth_has_several_spellings(text, value):
    assert made(f"options:greedy={text}").greedy is value


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            "options:budgte=3",
            "tree policy 'options' has no option 'budgte'; did you mean 'budget'? it has: budget, rate",
        ),
        ("options:zzz=3", "tree policy 'options' has no option 'zzz'; it has: budget, rate"),
        ("options:both=3", "tree policy 'options' has no option 'both'"),
        ("options:shared=3", "tree policy 'options' has no option 'shared'"),
        ("options:budget=1.5", "option 'budget' of tree policy 'options' is '1.5'; it must be a whole number"),
        ("options:budget=none", "option 'budget' of tree policy 'options' is 'none'; it must be a whole number"),
        ("options:budget=", "option 'budget' of tree policy 'options' is ''; it must be a whole number"),
        ("options:rate=much", "option 'rate' of tree policy 'options' is 'much'; it must be a number"),
        ("options:greedy=maybe", "option 'greedy' of tree policy 'options' is 'maybe'; it must be true or false"),
        (
            f"options:budget={2**63}",
            f"option 'budget' of tree policy 'options' is '{2**63}'; it must be a whole number of at most {2**63 - 1}",
        ),
        ("options:depth=deep", "option 'depth' of tree policy 'options' is 'deep'; it must be a whole number"),
        ("options:budget=1", "tree policy 'options': 'budget' must be >= 2: 1"),
        ("options:rate=3", "tree policy 'options': 'rate' must be <= 1: 3.0"),
        ("options:rate=nan", "tree policy 'options': 'rate' must be > 0: nan"),
        ("options:letters=abcd", "tree policy 'options': Length of 'letters' must be <= 3: 4"),
        ("demanding", "tree policy 'demanding' needs a value for model, as in demanding:model=..."),
    ],
)
def test_a_bad_option_gets_exactly_one_sentence(spec, sentence):
    with pytest.raises(ValueError, match="tree policy") as caught:
        made(spec)
    assert str(caught.value).startswith(sentence)
    assert len(caught.value.args) == 1
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("spec", "option"), [("options:mode=flat", "mode"), ("options:code=A1", "code")])
def test_a_long_validator_error_is_cut_to_its_sentence(spec, option):
    with pytest.raises(ValueError, match=f"^tree policy 'options': '{option}' must ") as caught:
        made(spec)
    assert "Attribute(" not in str(caught.value)


def test_an_unknown_name_is_a_look_up_error():
    with pytest.raises(LookupError, match="did you mean 'options'"):
        made("option:budget=3")


@pytest.mark.parametrize(
    ("spec", "why"),
    [("unresolvable", "NameError: name 'Nothing' is not defined"), ("exploding:fuse=1", "KeyError: 'boom'")],
)
def test_a_class_that_cannot_be_made_is_blamed_on_its_plugin(spec, why):
    name = spec.partition(":")[0]
    with pytest.raises(PluginError, match=f"tree policy '{name}' of mine:first cannot be made: {why}"):
        made(spec)


def test_everything_registered_is_built_from_its_kind_and_spec():
    assert talon_core.build("tree policy", "talon:budget=8,mu=0.5") == Talon(budget=8, mu=0.5)
    assert talon_core.build("rule", "match").name == "match"
    assert talon_core.build("drafter", "ngram:min-match=2").min_match == 2
    assert talon_core.build("attention backend", "reference").name == "reference"


@pytest.mark.parametrize(
    ("kind", "spec", "complaint"),
    [
        (
            "policy",
            "talon",
            "there is no kind 'policy' of things that are registered; kinds are tree policy, d",
        ),
        ([], "talon", r"there is no kind \[\] of things"),
        (
            "tree policy",
            Options(),
            r"the spec of a tree policy is Options\(.*\); it must be a text such as name",
        ),
        ("tree policy", "talon:budget=0", "tree policy 'talon': 'budget' must be >= 2: 0"),
        ("attention backend", "reference:fast=1", "attention backend 'reference' has no option 'fast'; it has: no opt"),
    ],
)
def test_what_cannot_be_built_gets_a_sentence(kind, spec, complaint):
    with pytest.raises(ValueError, match=f"^{complaint}"):
        talon_core.build(kind, spec)


def test_options_are_described_with_their_defaults():
    options = describe_options(Demanding)
    assert list(options) == [
        *("budget", "rate", "greedy", "mode", "depth", "limit", "count_or_auto", "letters", "code", "twice"),
        *("hidden", "model"),
    ]
    assert (options["budget"], options["twice"], options["depth"]) == (8, 3, None)
    assert options["model"] is attrs.NOTHING
    assert describe_options(Derived)["half"] is None


def test_the_defaults_of_every_built_in_can_be_described_and_made():
    registry = load_registry()
    for kind in ("tree policy", "rule", "drafter"):
        for name, entry in registry.entries[kind].items():
            options = describe_options(entry.cls)
            if attrs.NOTHING not in options.values() and name != "draft-model":  # which needs one of two options
                assert isinstance(build(registry, kind, name), entry.cls)
