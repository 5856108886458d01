"""What a result says of itself: that it is lossless, that it is not, or that a plugin says so."""

import functools
import importlib
import inspect
import sys
from importlib.metadata import PackagePath
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import Mock

import attrs
import numpy as np
import pytest

import talon_strategies
from talon_core import AcceptanceRule, Accepted, PluginError, Request, TableTarget, TreePolicy
from talon_core.certificates import subject
from talon_core.certificates.code import UntoldError, patched
from talon_core.certificates.standing import is_proved, standing
from talon_core.certificates.subject import Subject, is_own
from talon_core.certify.exact import Given
from talon_core.decoding.decoder import Decoder
from talon_core.plugins.parts import Parts, resolve
from talon_core.plugins.registry import load_registry
from talon_core.sampling import Sampling
from talon_core.testing import TableDrafter
from talon_strategies import Block, Chain, Hybrid, Match, RecursiveRejection, SampledChain, Talon, TalonSampled, Typical
from talon_tests.wrong import BonusOffByOne, KeepsTheLikelier, NoLeftover

TARGET = TableTarget(np.zeros((2, 2)))
DRAFTER = Given(TableDrafter([[0.5, 0.5]]))


def request(tokens: int = 64, **options: Any) -> Request:
    return Request(np.array([0]), tokens, Sampling(do_sample=True), seed=3, **options)


# What is proved


@pytest.mark.parametrize(
    ("rule", "policy"), [(Match(), None), (Match(), Talon()), (Hybrid(), TalonSampled()), (Block(), SampledChain())]
)
def test_talons_own_parts_are_lossless(rule: AcceptanceRule, policy: TreePolicy | None) -> None:
    assert standing(rule, policy) is True


def test_with_match_it_does_not_matter_how_a_tree_was_made(liar: Any) -> None:
    for policy in (liar.Draws(), liar.Fixed(), KeepsTheLikelier()):
        assert standing(Match(), policy) is True


def test_where_nothing_can_be_drawn_a_rule_for_drawn_children_is_match(liar: Any) -> None:
    assert standing(Hybrid(), liar.Fixed()) is True


class Says:
    """Says one thing when it is made, and another one later."""

    def __get__(self, policy: object, cls: type) -> str:
        return "deterministic"


def test_a_policy_whose_kind_may_change_is_not_taken_at_its_word() -> None:
    @attrs.frozen
    class Shifty(Chain):
        children: ClassVar[Any] = Says()

    assert is_proved(Match(), Shifty())
    assert not is_proved(Hybrid(), Shifty())


def test_a_lossy_rule_is_not_whoever_wrote_it() -> None:
    assert standing(Typical(), Chain()) is False


# What is claimed


def test_whatever_a_plugins_rule_decodes_is_claimed(liar: Any) -> None:
    for policy in (None, Chain(), liar.Fixed(), SampledChain()):
        assert standing(liar.TakesAll(), policy) == standing(liar.Honest(), policy) == "claimed"


def test_that_a_plugins_policy_keeps_its_draws_as_they_come_is_claimed(liar: Any) -> None:
    for rule in (RecursiveRejection(), Block(), Hybrid()):
        assert standing(rule, liar.Draws()) == "claimed"


def test_results_say_it_greedy_or_not(liar: Any) -> None:
    decoder = Decoder(TARGET, liar.TakesAll(), Chain(), DRAFTER)
    results = decoder.run_all([request(4), attrs.evolve(request(4), sampling=Sampling())])
    assert [result.lossless for result in results] == ["claimed", "claimed"]
    for asked, expected in (
        (Parts(policy="chain", rule="takes-all"), "claimed"),
        (Parts(policy="draws"), "claimed"),
        (Parts(policy="draws", rule="match"), True),
        (Parts(policy="fixed"), True),
    ):
        made = resolve(asked, load_registry())
        assert standing(made.rule, made.policy) == expected


# Who is TALON's own


def test_a_subclass_of_ours_is_not_ours() -> None:
    @attrs.frozen
    class Better(Match):
        pass

    assert is_own(Match())
    assert not is_own(Better())


def test_a_class_that_says_it_is_from_our_package_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    @attrs.frozen
    class Impostor(Match):
        pass

    Impostor.__module__, Impostor.__qualname__ = Match.__module__, "Match"
    assert not is_own(Impostor())
    module = ModuleType("talon_strategies.impostor")
    module.__file__, module.__dict__["Impostor"] = __file__, Impostor
    monkeypatch.setitem(sys.modules, "talon_strategies.impostor", module)
    Impostor.__module__, Impostor.__qualname__ = "talon_strategies.impostor", "Impostor"
    assert not is_own(Impostor())


def test_a_file_in_our_package_that_was_not_installed_with_it_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where TALON was installed from a wheel, which leaves a record of its files."""
    own = tmp_path / "talon_strategies"
    own.mkdir()
    (own / "added.py").write_text("class Added:\n    pass\n")
    (own / "installed.py").write_text("class Installed:\n    pass\n")
    record = SimpleNamespace(files=[PackagePath("talon_strategies/installed.py")])
    record.files[0].dist = SimpleNamespace(locate_file=lambda path: tmp_path / path)
    monkeypatch.setattr(subject, "distribution", lambda name: record)
    monkeypatch.setattr(subject, "own_folder", lambda: own)
    subject._recorded.cache_clear()
    monkeypatch.syspath_prepend(str(own))
    try:
        added, installed = (importlib.import_module(name) for name in ("added", "installed"))
        assert not is_own(added.Added())
        assert is_own(installed.Installed())
    finally:
        subject._recorded.cache_clear()
        for name in ("added", "installed"):
            sys.modules.pop(name, None)


def test_the_parts_of_the_test_kit_that_are_wrong_on_purpose_are_not_ours() -> None:
    assert not any(is_own(part) for part in (KeepsTheLikelier(), BonusOffByOne(), NoLeftover()))


def test_every_policy_and_rule_in_our_package_is_registered_and_so_certified() -> None:
    registry = load_registry()
    for name in talon_strategies.__all__:
        cls = getattr(talon_strategies, name)
        if inspect.isclass(cls) and issubclass(cls, TreePolicy | AcceptanceRule):
            kind = "rule" if issubclass(cls, AcceptanceRule) else "tree policy"
            assert registry.get(kind, cls.name).cls is cls
            assert is_own(cls())


def test_the_kind_of_a_policys_trees_stays_what_its_rule_was_checked_against() -> None:
    @attrs.frozen
    class Turning(Chain):
        name = "turning"

    decoder = Decoder(TableTarget(np.zeros((3, 3))), Hybrid(), Turning(), Given(TableDrafter(np.full((1, 3), 1 / 3))))
    Turning.children = "iid"
    with pytest.raises(PluginError, match="says that its children are iid, and said deterministic"):
        decoder.run_all([request(4)])


def test_a_policy_that_says_another_kind_than_its_class_is_not_taken_at_its_word() -> None:
    @attrs.frozen(slots=False)
    class TwoTongues(Chain):
        name = "two-tongues"

        def __getattribute__(self, attribute: str) -> Any:
            return "hybrid" if attribute == "children" else super().__getattribute__(attribute)

    assert standing(Hybrid(), TwoTongues()) == "claimed"


# What is replaced while Python runs


def accept_nothing(self: Any, tree: Any, laws: Any, choices: Any) -> Accepted:
    return Accepted(np.array([0]), 0)


REPLACED = {
    "by a function of another file": (Match, "walk", accept_nothing),
    "by a lambda": (Match, "walk", lambda self, tree, laws, choices: accept_nothing(self, tree, laws, choices)),
    "by a wrapper that says it is the same": (Match, "walk", functools.wraps(Match.walk)(accept_nothing)),
    "by an object": (Match, "walk", Mock()),
    "by another rule's": (Match, "walk", Block.walk),
    "in the interface": (AcceptanceRule, "__repr__", accept_nothing),
    "by something new": (Match, "__getattribute__", lambda self, name: object.__getattribute__(self, name)),
}


@pytest.mark.parametrize("how", REPLACED)
def test_a_rule_whose_method_is_replaced_while_python_runs_is_a_claim(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls, name, replacement = REPLACED[how]
    monkeypatch.setattr(cls, name, replacement, raising=False)
    assert not is_own(Match())
    assert standing(Match(), None) == standing(Match(), Talon()) == "claimed"
    with pytest.raises(UntoldError, match=rf"{cls.__name__}\.{name} is not the method of its file"):
        Subject.of(Talon(), Match())


def test_a_policy_whose_method_is_replaced_is_a_claim_where_the_rule_minds(monkeypatch: pytest.MonkeyPatch) -> None:
    grow = SampledChain.grow
    monkeypatch.setattr(SampledChain, "grow", lambda self, tree, candidates: grow(self, tree, candidates))
    assert standing(Match(), SampledChain()) is True
    assert standing(Block(), SampledChain()) == "claimed"


def test_a_plugin_whose_base_is_replaced_is_a_claim(liar: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liar.Fixed, "grow", liar.Draws.grow)
    with pytest.raises(UntoldError, match=r"Fixed\.grow is not the method of its file"):
        Subject.of(liar.Crashes(), Block())


@attrs.frozen(slots=False)
class OddlyMade(AcceptanceRule):
    """Methods of every kind as they stand in a file."""

    name = "oddly-made"
    exact_for = frozenset({"any"})
    share: float = 1.0

    walk = accept_nothing
    also = staticmethod(accept_nothing)
    ignored = functools.partialmethod(accept_nothing)

    @property
    def kind(self) -> str:
        return "a"

    @kind.setter
    def kind(self, value: str) -> None: ...

    @staticmethod
    def made() -> "OddlyMade":
        return OddlyMade()

    @classmethod
    def of(cls) -> "OddlyMade":
        return cls()

    @functools.lru_cache  # noqa: B019 - it is never called
    def kept(self) -> int:
        return 1

    @functools.cached_property
    def later(self) -> int:
        return 1

    def __private(self) -> int:
        return 1

    class Inner:
        def method(self) -> None: ...


def test_what_stands_in_the_file_is_not_replaced() -> None:
    for part in (OddlyMade(), OddlyMade.Inner(), Match(), Talon(), Typical(), KeepsTheLikelier(), BonusOffByOne()):
        assert patched(part) is None
    held = OddlyMade()
    held.__dict__["walk"] = accept_nothing
    assert patched(held) == "OddlyMade.walk"


def test_none_of_ours_is_replaced() -> None:
    registry = load_registry()
    for kind in ("tree policy", "rule"):
        for name in registry.names(kind):
            assert patched(object.__new__(registry.get(kind, name).cls)) is None
