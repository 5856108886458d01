"""What the tests of policies and rules share: a whole round without limits, drawn trees, and exact laws of rounds."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import pytest

from talon_core.candidates import Candidates
from talon_core.choices import Choices, SeededChoices, enumerate_outcomes
from talon_core.drafting import Drafted, DraftLimits, draft_tree
from talon_core.drawn import Drawn, without
from talon_core.laws import Laws
from talon_core.policy import TreePolicy
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.testing import TableDrafter
from talon_core.tree import FloatArray, TokenTree

Shape = tuple[Any, ...]
"""A node by its children's shapes; `()` is a leaf."""


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


class TableLaws(Laws):
    """The target's laws at the nodes of a tree, from the same kind of table that drafters have in tests."""

    def __init__(self, target: TableDrafter, tree: TokenTree, end: int | None = None) -> None:
        self.target, self.tree, self.end = target, tree, end
        self.visited: list[int] = []

    def at(self, node: int) -> FloatArray:
        self.visited.append(node)
        return self.target.law_after(self.tree.tokens[self.tree.path(node)].tolist())

    def ends(self, token: int) -> bool:
        return token == self.end


class Whatever(Choices):
    """Takes whatever outcome it is told to, however unlikely, as long as it is possible."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = list(numbers)

    def pick(self, law: FloatArray) -> int:
        assert np.isfinite(law).all()
        assert law.sum() == pytest.approx(1)
        possible = np.flatnonzero(law > 0)
        return int(possible[(self._numbers.pop() if self._numbers else 0) % len(possible)])


def drawn_tree(drafter: TableDrafter, shape: Shape, kind: str, choices: Choices) -> TokenTree:
    """A tree of some shape under token 0, of some kind of children; of "hybrid" ones the last is drawn.

    A token that is drawn twice is one node, with the shape of its first draw. Where a law runs out of tokens, the last
    children are missing.
    """
    tokens, parents, shapes = [0], [-1], [shape]
    drawn: dict[int, Drawn] = {}
    for node, children in enumerate(shapes):  # grows meanwhile
        path = [node]
        while path[-1]:
            path.append(parents[path[-1]])
        law = drafter.law_after([tokens[one] for one in reversed(path)])
        most = {"hybrid": max(len(children) - 1, 0), "deterministic": len(children)}.get(kind, 0)  # fixed ones
        new = [int(token) for token in np.argsort(-law, kind="stable")[:most] if law[token] > 0]
        rest, places = without(law, new) if new else law, list(range(len(new)))
        if len(children) > most and rest.any():
            candidates = Candidates(np.array([node]), np.array([[0]]), np.zeros((1, 1)), np.zeros((1, 1)), choices)
            one = candidates.draw(0, len(children) - most, law=rest, replacement=kind == "iid")
            drawn[node], new, places = one, [*new, *one.nodes.tolist()], [*places, *(most + one.firsts).tolist()]
        tokens += new
        parents += [node] * len(new)
        shapes += [children[place] for place in places]
    return TokenTree(tokens, parents, np.zeros(len(tokens)), drawn)


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


Law = dict[tuple[int, ...], float]


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
        emitted: Law = defaultdict(float)
        for walk in self.walks(rule):
            emitted[walk.text] += walk.prob
        ours, plain = self._continued(emitted, length), self._continued({(): 1.0}, length)
        return max(abs(ours[text] - plain[text]) for text in {*ours, *plain})

    def _continued(self, emitted: Law, length: int) -> Law:
        law: Law = defaultdict(float)

        def extend(text: tuple[int, ...], prob: float) -> None:
            if len(text) >= length or self.end in text[-1:]:
                law[text[:length]] += prob
                return
            for token, p in enumerate(self.target.law_after([0, *text]).tolist()):
                extend((*text, token), prob * p)

        for text, prob in emitted.items():
            extend(text, prob)
        return law


@pytest.fixture(scope="session")
def rounds() -> Callable[..., Rounds]:
    """All rounds with drawn trees of one shape and kind."""

    def rounds(drafter: TableDrafter, target: TableDrafter, kind: str, shape: Shape, end: int | None = None) -> Rounds:
        return Rounds(lambda choices: drawn_tree(drafter, shape, kind, choices), target, end)

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
        tree = drawn_tree(drafter, shape, kind, choices)
        laws = TableLaws(target, tree, end)
        accepted = rule.walk(tree, laws, choices)
        text = [0, *tree.tokens[accepted.path[1:]].tolist(), accepted.token]
        assert tree.parents[accepted.path[1:]].tolist() == accepted.path[:-1].tolist()
        assert all(target.law_after(text[:at])[text[at]] > 0 for at in range(1, len(text)))
        assert end not in text[1:-1]
        return tree, accepted, laws.visited

    return walk_whatever


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


@pytest.fixture(scope="session")
def table_laws() -> type[TableLaws]:
    """The target's laws at the nodes of a tree."""
    return TableLaws
