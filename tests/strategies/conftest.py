"""What the tests of policies and rules share: a whole round without limits, drawn trees, and exact laws of rounds."""

from collections.abc import Callable, Sequence

import attrs
import numpy as np
import pytest

from talon_core.certify.exact import Law, completed, distance, law_of
from talon_core.choices import Choices, SeededChoices, enumerate_outcomes
from talon_core.engine.drafting import Drafted, DraftLimits, draft_tree
from talon_core.policy import TreePolicy
from talon_core.rounds import Round
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.testing import TableDrafter, TableLaws
from talon_core.testing.drawing import Shape, draw_tree
from talon_core.tree import FloatArray, TokenTree


@pytest.fixture(scope="session")
def draft() -> Callable[..., Drafted]:
    """Drafts one tree from root token 0, as deep as the policy likes."""

    def draft(policy: TreePolicy, drafter: TableDrafter, choices: Choices | None = None) -> Drafted:
        limits = DraftLimits(drafter.vocab_size, max_depth=10**6)
        return draft_tree(policy, drafter, 0, limits, choices or SeededChoices(0))

    return draft


@pytest.fixture(scope="session")
def paths() -> Callable[[TokenTree], set[tuple[int, ...]]]:
    """The tokens along the path to each node of a tree, the root's first."""

    def paths(tree: TokenTree) -> set[tuple[int, ...]]:
        return {tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree))}

    return paths


@pytest.fixture(scope="session")
def chain_until() -> Callable[..., list[int]]:
    """The tokens of a chain of the drafter's best ones that ends after the first one for which a rule holds."""

    def chain_until(drafter: TableDrafter, length: int, ends: Callable[[FloatArray], bool]) -> list[int]:
        tokens = [0]
        while len(tokens) <= length:
            law = drafter.law_after(tokens)
            tokens.append(int(law.argmax()))
            if ends(np.sort(law)[::-1]):
                break
        return tokens

    return chain_until


@pytest.fixture(scope="session")
def round_of() -> Callable[[int, int], Round]:
    """A round in which so many tokens of a chain were drafted, and so many of them accepted."""

    def round_of(drafted: int, accepted: int) -> Round:
        tree = TokenTree(np.zeros(1 + drafted), np.arange(-1, drafted), np.zeros(1 + drafted))
        return Round(tree=tree, path=np.arange(1 + accepted), tokens=np.zeros(1 + accepted, dtype=np.int64))

    return round_of


class Whatever(Choices):
    """Takes whatever outcome it is told to, however unlikely, as long as it is possible."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = list(numbers)

    def pick(self, law: FloatArray) -> int:
        assert np.isfinite(law).all()
        assert law.sum() == pytest.approx(1)
        possible = np.flatnonzero(law > 0)
        return int(possible[(self._numbers.pop() if self._numbers else 0) % len(possible)])


@attrs.frozen
class Walk:
    """One way in which a round can go."""

    prob: float
    tree: TokenTree
    accepted: Accepted

    @property
    def text(self) -> tuple[int, ...]:
        """What is emitted."""
        return (*self.tree.tokens[self.accepted.path[1:]].tolist(), self.accepted.token)


@attrs.frozen
class Rounds:
    """Rounds with every draw of the tree and of the rule enumerated.

    Attributes:
        make: makes a tree.
        target: its laws at the nodes.
        end: the token that ends the text.
    """

    make: Callable[[Choices], TokenTree]
    target: TableDrafter
    end: int | None = None

    def walks(self, rule: AcceptanceRule) -> list[Walk]:
        """Every way in which these rounds can go."""

        def walks(tree: TokenTree) -> list[tuple[float, Accepted]]:
            return list(enumerate_outcomes(lambda own: rule.walk(tree, TableLaws(self.target, tree, self.end), own)))

        trees = enumerate_outcomes(self.make)
        return [Walk(prob * own, tree, accepted) for prob, tree in trees for own, accepted in walks(tree)]

    def accepted(self, rule: AcceptanceRule) -> float:
        """How many drafted tokens are accepted on average."""
        return sum(walk.prob * (len(walk.accepted.path) - 1) for walk in self.walks(rule))

    def error(self, rule: AcceptanceRule, length: int = 3) -> float:
        """By how much the law of the next tokens is not the target's; what is not emitted yet is drawn from it."""

        def whole(emitted: Law) -> Law:
            return completed(emitted, length, lambda text: self.target.law_after([0, *text]), self.end)

        emitted = law_of((walk.prob, walk.text) for walk in self.walks(rule))
        return distance(whole(emitted), whole({(): 1.0}))


@pytest.fixture(scope="session")
def rounds() -> Callable[..., Rounds]:
    """All rounds with drawn trees of one shape and kind."""

    def rounds(drafter: TableDrafter, target: TableDrafter, kind: str, shape: Shape, end: int | None = None) -> Rounds:
        return Rounds(lambda choices: draw_tree(kind, drafter, shape, choices, fixed=None), target, end)

    return rounds


@pytest.fixture(scope="session")
def rounds_of(draft: Callable[..., Drafted]) -> Callable[..., Rounds]:
    """All rounds with the trees of one policy."""

    def rounds_of(policy: TreePolicy, drafter: TableDrafter, target: TableDrafter) -> Rounds:
        return Rounds(lambda choices: draft(policy, drafter, choices).tree, target)

    return rounds_of


@pytest.fixture(scope="session")
def walk_whatever() -> Callable[..., tuple[TokenTree, Accepted, list[int]]]:
    """One round in which draws come out in any possible way: the tree, what is accepted, where laws were asked for."""

    def walk_whatever(
        rule: AcceptanceRule,
        drafter: TableDrafter,
        target: TableDrafter,
        kind: str,
        shape: Shape,
        numbers: Sequence[int],
        end: int | None = None,
    ) -> tuple[TokenTree, Accepted, list[int]]:
        choices = Whatever(numbers)
        tree = draw_tree(kind, drafter, shape, choices, fixed=None)
        laws = TableLaws(target, tree, end)
        accepted = rule.walk(tree, laws, choices)
        text = [0, *tree.tokens[accepted.path[1:]].tolist(), accepted.token]
        assert tree.parents[accepted.path[1:]].tolist() == accepted.path[:-1].tolist()
        assert all(target.law_after(text[:at])[text[at]] > 0 for at in range(1, len(text)))
        assert end not in text[1:-1]
        return tree, accepted, laws.asked

    return walk_whatever


@pytest.fixture(scope="session")
def first_draws() -> Callable[[TokenTree], list[int]]:
    """The nodes from the root to the first drawn child of each, down to where nothing was drawn."""

    def first_draws(tree: TokenTree) -> list[int]:
        path = [0]
        while (drawn := tree.drawn.get(path[-1])) is not None:
            child = tree.child(path[-1], int(drawn.tokens[0]))
            assert child is not None
            path.append(child)
        return path

    return first_draws


@pytest.fixture(scope="session")
def greedy() -> Callable[[TableDrafter], TableDrafter]:
    """A target at temperature 0."""

    def greedy(target: TableDrafter) -> TableDrafter:
        return TableDrafter(np.eye(target.vocab_size)[target.laws.argmax(axis=1)])

    return greedy


@pytest.fixture(scope="session")
def greedy_path() -> Callable[[TokenTree, TableDrafter], tuple[list[int], int]]:
    """The longest path of a tree on which each token is the target's likeliest, and the token after it."""

    def greedy_path(tree: TokenTree, target: TableDrafter) -> tuple[list[int], int]:
        text = [0]
        while len(text) <= len(tree):
            text.append(int(target.law_after(text).argmax()))
        path = tree.follow(text[1:]).tolist()
        return path, text[len(path)]

    return greedy_path
