"""The registry: everything comes through the front door, and nobody can spoil it for the others."""

import subprocess
import sys
from asyncio import CancelledError
from importlib.metadata import Distribution, EntryPoint
from types import ModuleType, SimpleNamespace

import attrs
import pytest

import talon_core.plugins.registry
from talon_core.attention import AttentionBackend
from talon_core.hookspecs import hookimpl
from talon_core.plugins.registry import KINDS, load_registry
from talon_core.plugins.specs import describe_options
from talon_core.policy import Growth, TreePolicy


@attrs.frozen
class Widest(TreePolicy):
    name = "widest"
    budget: int = 8

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(self.budget - len(tree)))


@attrs.frozen
class OtherWidest(Widest):
    """Another class of the same name."""


def plugin(*classes, hook="talon_policies"):
    """A loader, as an entry point has it, of a plugin that lists `classes` under one hook."""

    def listed():
        return list(classes)

    return lambda: SimpleNamespace(**{hook: hookimpl(listed, specname=hook)})


def failing(error):
    def load():
        raise error

    return load


def test_a_plugins_class_is_found_by_its_name_with_who_brought_it():
    found = load_registry([("mine:first", plugin(Widest))]).get("tree policy", "widest")
    assert (found.kind, found.name, found.cls, found.plugin) == ("tree policy", "widest", Widest, "mine:first")


def test_the_built_ins_are_found_through_entry_points_only(monkeypatch):
    monkeypatch.setattr(talon_core.plugins.registry, "entry_points", lambda group: [])
    assert not any(load_registry().entries.values())


@pytest.mark.parametrize(("value", "shown"), [("", "''"), ("1nvalid value!", "'1nvalid value!'")])
def test_an_entry_point_that_names_no_module_is_told_in_words(monkeypatch, value, shown):
    entry = EntryPoint("odd", value, "talon")
    monkeypatch.setattr(talon_core.plugins.registry, "entry_points", lambda group: [entry])
    said = load_registry().failures["unknown:odd"]
    assert said == f"ValueError: its entry point is {shown}; it must be module or module:object"


def test_importing_the_framework_loads_no_plugin_and_nothing_heavy():
    heavy = {"talon_strategies", "talon_drafters", "talon_kernels", "torch", "transformers", "triton", "hypothesis"}
    code = f"import sys, talon_core; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_looking_at_the_built_ins_imports_nothing_heavy():
    code = (
        "import sys; from talon_core.plugins.registry import load_registry; load_registry(); "
        "print(sorted({'torch', 'transformers', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_of_talons_own_fails_to_load():
    failures = load_registry().failures
    assert {plugin: why for plugin, why in failures.items() if plugin.startswith("talon-core:")} == {}


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_sorted(kind):
    names = load_registry().names(kind)
    assert names == sorted(names)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(LookupError, match="no tree policy 'widets'; did you mean 'widest'\\? there are: widest"):
        load_registry([("mine:first", plugin(Widest))]).get("tree policy", "widets")


def test_where_nothing_is_registered_the_error_says_so():
    with pytest.raises(LookupError, match="no drafter 'ngram'; there are: none"):
        load_registry([("mine:first", plugin(Widest))]).get("drafter", "ngram")


def test_who_names_the_files_of_a_drafter_alone_is_told_how(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "widests").mkdir()
    registry = load_registry([])
    for files in ("./head", "owner/head", "widests"):
        says = f"no drafter '{files}'; files are an option of a drafter, NAME:path={files}, and talon doctor --drafter "
        assert registry.unknown("drafter", files).startswith(says)
    assert "path=" not in registry.unknown("drafter", "elsewhere")
    assert "path=" not in registry.unknown("tree policy", "widests")


def test_a_failed_look_up_names_every_plugin_that_failed():
    registry = load_registry(
        [("a:x", failing(ImportError("no module named flux"))), ("b:y", failing(RuntimeError("late")))]
    )
    with pytest.raises(LookupError) as caught:
        registry.get("tree policy", "widest")
    assert "failed to load: a:x (ImportError: no module named flux)" in str(caught.value)
    assert "failed to load: b:y (RuntimeError: late)" in str(caught.value)


def test_a_name_can_be_taken_once_and_the_first_keeps_it():
    registry = load_registry([("a:x", plugin(Widest)), ("b:y", plugin(OtherWidest))])
    assert registry.get("tree policy", "widest").cls is Widest
    assert registry.failures == {
        "b:y (talon_policies)": f"{__name__}.OtherWidest is called 'widest', a name that a:x has taken"
    }


def test_the_same_name_may_be_used_for_two_kinds():
    @attrs.frozen
    class Rule(load_registry().get("rule", "match").cls):
        name = "widest"

    both = load_registry([("a:x", plugin(Widest)), ("b:y", plugin(Rule, hook="talon_rules"))])
    assert not both.failures
    assert both.names("rule") == both.names("tree policy") == ["widest"]


class FakeDistribution(Distribution):
    """An installed distribution of which only the name matters."""

    def __init__(self, name):
        self._name = name

    @property
    def metadata(self):
        return {"Name": self._name}

    def read_text(self, filename):
        return None

    def locate_file(self, path):
        raise NotImplementedError


def entry(distribution, name, value):
    point = EntryPoint(name=name, value=value, group="talon")
    vars(point)["dist"] = FakeDistribution(distribution)
    return point


@pytest.fixture
def installed(monkeypatch):
    """Installs modules with policies under entry points of any distribution and name, in any order."""

    def install(*entries):
        points = []
        for number, (distribution, name, classes) in enumerate(entries):
            module = ModuleType(f"installed_{number}")
            module.talon_policies = plugin(*classes)().talon_policies
            monkeypatch.setitem(sys.modules, module.__name__, module)
            points.append(entry(distribution, name, module.__name__))
        monkeypatch.setattr(talon_core.plugins.registry, "entry_points", lambda group: points)

    return install


@attrs.frozen
class Other(Widest):
    name = "other"


@pytest.mark.parametrize("turn", [1, -1])
def test_two_entry_points_of_one_name_are_both_loaded(installed, turn):
    installed(*[("aaa-clash", "strategies", [Other]), ("talon-core", "strategies", [Widest])][::turn])
    registry = load_registry()
    assert registry.names("tree policy") == ["other", "widest"]
    assert registry.get("tree policy", "other").plugin == "aaa-clash:strategies"
    assert not registry.failures


@pytest.mark.parametrize("turn", [1, -1])
def test_nobody_can_take_a_built_ins_name_whatever_the_order(installed, turn):
    installed(*[("aaa-clash", "aaa", [OtherWidest]), ("talon-core", "talon-strategies", [Widest])][::turn])
    registry = load_registry()
    assert registry.get("tree policy", "widest").plugin == "talon-core:talon-strategies"
    assert list(registry.failures) == ["aaa-clash:aaa (talon_policies)"]


def test_a_distribution_that_is_found_twice_is_loaded_once(installed):
    installed(("mine", "first", [Widest]), ("mine", "first", [OtherWidest]))
    registry = load_registry()
    assert registry.get("tree policy", "widest").cls is Widest
    assert not registry.failures


class NotAttrs(TreePolicy):
    name = "not-attrs"
    budget = 8

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(1))


@attrs.frozen
class Unfinished(TreePolicy):
    name = "unfinished"
    budget: int = 8


def named(given):
    return attrs.make_class("Named", {}, bases=(Widest,), class_body={"name": given}, frozen=True)


@pytest.mark.parametrize(
    ("listed", "complaint"),
    [
        (dict, "<class 'dict'> is not a subclass of TreePolicy"),
        (Widest(), "Widest(budget=8) is not a subclass of TreePolicy"),
        ("widest", "'widest' is not a subclass of TreePolicy"),
        (NotAttrs, "NotAttrs is not an attrs class; decorate it with @attrs.frozen"),
        (Unfinished, "Unfinished does not implement grow"),
        (TreePolicy, "TreePolicy has no name"),
        (named(""), "Named has no name"),
        (named(7), "Named has no name"),
        (named("No Name"), "is called 'No Name'; a name is lower case letters and digits with dashes between"),
        (named("a:b=1"), "is called 'a:b=1'; a name is lower case"),
        (named("gr\u00f6\u00dfe"), "a name is lower case letters"),
        (named("none"), "is called 'none', which means that there is none"),
        (named("auto"), "is called 'auto', which means that one is chosen"),
    ],
)
def test_a_class_that_cannot_be_registered_is_named_and_its_neighbours_stay(listed, complaint):
    registry = load_registry([("mine:first", plugin(Other, listed, Widest))])
    assert registry.names("tree policy") == ["other", "widest"]
    assert list(registry.failures) == ["mine:first (talon_policies)"]
    assert complaint in registry.failures["mine:first (talon_policies)"]


def test_every_class_that_cannot_be_registered_is_named():
    (why,) = load_registry([("mine:first", plugin(dict, NotAttrs))]).failures.values()
    assert "'dict'" in why
    assert "NotAttrs" in why


@pytest.mark.parametrize(
    "error",
    [
        *(ImportError("gone"), SyntaxError("bad"), AssertionError(), KeyError("x")),
        *(SystemExit(3), GeneratorExit(), CancelledError(), StopIteration(), BaseException("odd")),
    ],
)
def test_a_plugin_that_fails_to_load_stops_nobody(error):
    registry = load_registry([("a:x", failing(error)), ("b:y", plugin(Widest))])
    assert registry.names("tree policy") == ["widest"]
    assert type(error).__name__ in registry.failures["a:x"]


def test_the_user_can_still_interrupt():
    with pytest.raises(KeyboardInterrupt):
        load_registry([("a:x", failing(KeyboardInterrupt()))])


class Lists:
    """What may stand in a module as a hook, beside a function of its own."""

    @classmethod
    @hookimpl(specname="talon_policies")
    def of_a_class(cls):
        return [Widest]

    @hookimpl(specname="talon_policies")
    def of_an_object(self):
        return [Widest]


@pytest.mark.parametrize(
    "listed",
    [hookimpl(lambda: [Widest], specname="talon_policies"), Lists.of_a_class, Lists().of_an_object],
    ids=["function", "method of a class", "method of an object"],
)
def test_whatever_pluggy_calls_may_be_a_hook_of_a_module(listed):
    module = ModuleType("mine")
    module.listed, module.Widest, module.NAMES = listed, Widest, ("widest",)
    assert load_registry([("mine:first", lambda: module)]).names("tree policy") == ["widest"]


def test_a_hook_that_raises_costs_only_itself():
    @hookimpl
    def talon_drafters():
        raise RuntimeError("no weights")

    both = SimpleNamespace(talon_policies=plugin(Widest)().talon_policies, talon_drafters=talon_drafters)
    registry = load_registry([("mine:first", lambda: both)])
    assert registry.names("tree policy") == ["widest"]
    assert registry.failures == {"mine:first (talon_drafters)": "RuntimeError: no weights"}


@pytest.mark.parametrize("error", [SystemExit(3), CancelledError(), StopIteration()])
def test_a_hook_that_leaves_costs_only_itself(error):
    @hookimpl
    def talon_policies():
        raise error

    registry = load_registry([("a:x", lambda: SimpleNamespace(talon_policies=talon_policies)), ("b:y", plugin(Widest))])
    assert registry.names("tree policy") == ["widest"]
    assert type(error).__name__ in registry.failures["a:x (talon_policies)"]


def test_a_hook_with_arguments_of_its_own_is_a_failure_that_says_so():
    @hookimpl
    def talon_policies(model):
        return [Widest]

    (why,) = load_registry([("mine:first", lambda: SimpleNamespace(talon_policies=talon_policies))]).failures.values()
    assert "Argument(s) {'model'} are declared in the hookimpl but can not be found in the hookspec" in why
    assert "\n" not in why


class Unreadable(type):
    @property
    def name(cls):
        raise RuntimeError("no name today")


@pytest.mark.parametrize(
    ("claims", "complaint"),
    [
        ({"exact_for": None}, "Claims has exact_for = None; it must be a frozenset of kinds of trees"),
        ({"exact_for": property(len)}, "Claims has exact_for = <property object"),
        ({"lossy": "yes"}, "Claims has lossy = 'yes'; it must be True or False"),
    ],
)
def test_a_rule_whose_claims_cannot_be_understood_is_left_out(claims, complaint):
    rule = load_registry().get("rule", "match").cls
    made = attrs.frozen(type("Claims", (rule,), {"name": "claims", **claims}))
    registry = load_registry([("mine:first", plugin(made, hook="talon_rules"))])
    assert registry.names("rule") == []
    assert complaint in registry.failures["mine:first (talon_rules)"]


def test_a_class_that_cannot_be_looked_at_is_left_out():
    odd = Unreadable("Odd", (), {})
    policy = type("Policy", (type(Widest),), {"name": property(lambda cls: 1 / 0)})("Policy", (Widest,), {})
    registry = load_registry([("mine:first", plugin(odd, policy, Other))])
    assert registry.names("tree policy") == ["other"]
    assert "cannot be looked at: ZeroDivisionError" in registry.failures["mine:first (talon_policies)"]


@pytest.mark.parametrize("answer", [7, Widest])
def test_a_hook_that_returns_no_list_is_a_failure(answer):
    @hookimpl
    def talon_policies():
        return answer

    registry = load_registry([("mine:first", lambda: SimpleNamespace(talon_policies=talon_policies))])
    assert list(registry.failures) == ["mine:first (talon_policies)"]


def test_a_misspelt_hook_is_a_failure():
    @hookimpl
    def talon_policy():
        return [Widest]

    (why,) = load_registry([("mine:first", lambda: SimpleNamespace(talon_policy=talon_policy))]).failures.values()
    assert "talon_policy" in why


def test_a_hook_without_its_marker_is_a_failure():
    module = SimpleNamespace(talon_policies=lambda: [Widest])
    assert load_registry([("mine:first", lambda: module)]).failures == {
        "mine:first": "ValueError: it registers nothing: no function of it is marked @hookimpl"
    }


def test_a_class_that_is_made_without_options_need_not_be_an_attrs_class():
    class Backend(AttentionBackend):
        name = "backend"

        def unavailable(self, device, dtype):
            return None

        def attend(self, *args, **kwargs):
            raise NotImplementedError

    registry = load_registry([("mine:first", plugin(Backend, hook="talon_attention"))])
    assert registry.get("attention backend", "backend").cls is Backend
    assert describe_options(Backend) == {}
