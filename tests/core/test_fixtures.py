"""The pytest plugin: what its fixtures do, what they say when something is wrong, and that it costs nobody anything."""

import os
import subprocess
import sys
from importlib.metadata import entry_points

import attrs
import numpy as np
import pytest

from talon_core import AcceptanceRule, Accepted, Growth, TokenTree, TreePolicy
from talon_core.testing import CertificationError, TableDrafter, check_drafter, check_rule, check_tree_policy
from talon_tests.wrong import KeepsTheLikelier

LAWS = [[0.6, 0.3, 0.1]]


@attrs.frozen
class Widest(TreePolicy):
    name = "widest"
    budget: int = 4

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(self.budget - len(tree)))


@attrs.frozen
class NeverAccepts(AcceptanceRule):
    name = "never-accepts"
    exact_for = frozenset({"any"})

    def walk(self, tree, laws, choices):
        return Accepted(np.array([0]), laws.draw(0, choices))


def test_certify_gives_a_certificate_of_worlds_that_a_test_can_wait_for(talon_certify):
    certificate = talon_certify(Widest(), worlds=20)
    assert (certificate.certified, certificate.worlds, certificate.rule) == (True, 20, "match")


def test_a_refuted_policy_is_told_with_the_seed_and_the_counterexample_and_no_more(talon_certify):
    with pytest.raises(CertificationError, match=r"(?s)REFUTED: policy keeps-the-likelier.* seed 3\n") as caught:
        talon_certify(KeepsTheLikelier(), worlds=100, seed=3)
    assert [entry.name for entry in caught.traceback.filter(caught)] == [
        "test_a_refuted_policy_is_told_with_the_seed_and_the_counterexample_and_no_more"
    ]


def test_a_class_in_the_place_of_its_policy_is_refused_in_words(talon_certify):
    with pytest.raises(
        ValueError,
        match=r"the tree policy is <class .*Widest'>; it must .* TreePolicy, as Widest\(\) and not Widest",
    ):
        talon_certify(Widest)


def test_the_contracts_are_at_hand(talon_check_policy, talon_check_rule, talon_check_drafter):
    expected = (check_tree_policy, check_rule, check_drafter)
    assert (talon_check_policy, talon_check_rule, talon_check_drafter) == expected


def test_a_tree_is_drafted_from_a_table_of_laws(talon_draft):
    tree = talon_draft(Widest(), LAWS)
    assert isinstance(tree, TokenTree)
    assert (tree.tokens.tolist(), tree.parents.tolist()) == ([0, 0, 1, 2], [-1, 0, 0, 0])
    assert talon_draft(Widest(), TableDrafter(LAWS, knows=1), root=2).tokens.tolist() == [2, 0, 0, 0]
    assert len(talon_draft(Widest(), TableDrafter(LAWS, knows=1), max_depth=1)) == 2
    assert talon_draft(Widest(budget=7), LAWS, root=1, ends=[0, 1]).tokens.tolist() == [1]
    ended = talon_draft(Widest(budget=7), LAWS, ends=[1])
    assert 1 not in ended.tokens[ended.parents[1:]]


def test_a_tree_that_is_drawn_hangs_on_the_seed_alone(talon_draft):
    def drawn(seed):
        return talon_draft(KeepsTheLikelier(), [[0.25] * 4], seed=seed).tokens.tolist()

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(9)}) > 1


def test_rounds_of_a_whole_generation_from_two_tables(talon_rounds):
    after = [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]  # 0 1 2 0 1 2
    rounds = talon_rounds(Widest(), target=after, drafter=LAWS, tokens=5)
    assert [token for one in rounds for token in one.tokens.tolist()] == [1, 2, 0, 1, 2]
    assert [one.accepted for one in rounds] == [1, 1, 0]
    (only,) = talon_rounds(Widest(), target=after, drafter=LAWS, tokens=5, ends=[1])
    assert only.tokens.tolist() == [1]


def test_rounds_take_a_rule_a_temperature_and_a_seed(talon_rounds):
    def text(rule, **options):
        rounds = talon_rounds(Widest(), LAWS, LAWS, rule=rule, temperature=1.0, tokens=12, **options)
        return tuple(token for one in rounds for token in one.tokens.tolist())

    assert text("match", seed=4) == text(None, seed=4)
    assert len({text("match", seed=seed) for seed in range(5)}) > 1
    assert len(talon_rounds(Widest(), LAWS, LAWS, rule=NeverAccepts(), tokens=7)) == 7


def test_walks_of_a_rule_are_all_there_with_their_probabilities(talon_walks):
    tree = TokenTree([0, 1], [-1, 0], [0.0, -1.0])
    never = [(prob, one.path.tolist(), one.token) for prob, one in talon_walks(NeverAccepts(), tree, LAWS)]
    assert never == [(0.6, [0], 0), (0.3, [0], 1), (0.1, [0], 2)]
    assert sum(prob for prob, _ in talon_walks("match", tree, LAWS)) == pytest.approx(1)
    assert {len(one.path) for _, one in talon_walks("match", tree, LAWS)} == {1, 2}
    assert {len(one.path) for _, one in talon_walks("match", tree, LAWS, end=1)} == {1}


def test_the_plugin_is_found_through_its_entry_point():
    (point,) = [point for point in entry_points(group="pytest11") if point.dist.name == "talon-core"]
    assert (point.name, point.value) == ("talon", "talon_core.testing.fixtures")


def python(*arguments, cwd):
    offline = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=offline, capture_output=True, text=True, check=False
    )


def test_loading_the_plugin_loads_nothing_heavy(tmp_path):
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n"
        "def test_nothing():\n"
        "    assert 'talon_core.testing.fixtures' in sys.modules\n"
        "    heavy = {'numpy', 'torch', 'transformers', 'hypothesis', 'talon_strategies', 'talon_core.tree'}\n"
        "    assert not heavy & set(sys.modules)\n"
    )
    # other plugins of this environment may load what they like
    others = {point.name for point in entry_points(group="pytest11")} - {"talon"}
    off = [option for name in sorted(others) for option in ("-p", f"no:{name}")]
    done = python("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *off, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_hypothesis_other_tests_run_and_a_fixture_that_needs_it_says_what_to_install(tmp_path):
    (tmp_path / "conftest.py").write_text("import sys\nsys.modules['hypothesis'] = None\n")
    (tmp_path / "test_some.py").write_text(
        "import attrs\n"
        "from talon_core import Growth, TreePolicy\n"
        "@attrs.frozen\n"
        "class Widest(TreePolicy):\n"
        "    name = 'widest'\n"
        "    budget: int = 3\n"
        "    def grow(self, tree, candidates, choices):\n"
        "        return Growth(candidates.best(self.budget - len(tree)))\n"
        "def test_without_the_kit(): pass\n"
        "def test_draft(talon_draft): assert len(talon_draft(Widest(), [[0.5, 0.5]])) == 3\n"
        "def test_certify(talon_certify): pass\n"
        "def test_check_policy(talon_check_policy): pass\n"
        "def test_check_rule(talon_check_rule): pass\n"
        "def test_check_drafter(talon_check_drafter): pass\n"
    )
    options = ("-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    done = python("-m", "pytest", *options, cwd=tmp_path)
    assert "2 passed, 4 errors" in done.stdout, done.stdout + done.stderr
    for name in ("talon_certify", "talon_check_policy", "talon_check_rule", "talon_check_drafter"):
        assert f"fixture '{name}' needs hypothesis: pip install 'talon-core[testing]'" in done.stdout
