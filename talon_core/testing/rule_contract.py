"""What every acceptance rule must keep, as a function that its author runs in a test."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from talon_core.certificates.store import TOLERANCE
from talon_core.certify.exact import Law, completed, distance
from talon_core.choices import Choices, ScriptedChoices, SeededChoices, enumerate_outcomes
from talon_core.drawn import KINDS
from talon_core.engine.walking import checked_walk
from talon_core.errors import blaming
from talon_core.rule import AcceptanceRule, Accepted, DrawnOrder
from talon_core.table import TableDrafter
from talon_core.testing.claims import check_class, made, require, steady, unexplained
from talon_core.testing.drawing import Shape, draw_tree, shapes
from talon_core.testing.strategies import laws
from talon_core.testing.table import TableLaws
from talon_core.testing.tested import where_tests_lead
from talon_core.tree import FloatArray, TokenTree

_WEIGHTS = st.sampled_from([1.0, 2.0, 3.0, 5.0, 9.0, 0.0, 1e-12])
"""Mostly small numbers, which are easy to follow."""

SEEDS = 3
"""Walks with different numbers in which a rule's tests are compared with those that it says it makes."""

MOST_OUTCOMES = 3000
"""A trial with more outcomes than this is left out, and another one is tried."""


def check_rule(make: Callable[[], AcceptanceRule], *, max_examples: int = 200) -> None:
    """Check that an acceptance rule keeps the contract of `AcceptanceRule`.

    What it says of itself is checked once. Then it walks through trees of each kind that it says it is exact for, with
    random laws of the drafter and of the target. The drawing of the tree and the walk are run once for every way in
    which they can come out. Each walk must be a path from the root, and end at a token that ends the text. The laws
    must be asked for at accepted nodes only, unless the rule looks ahead. At temperature 0 a rule that follows the
    argmax must do so. One that says how it tests drawn children must come to the same with the same numbers. And all
    walks together, completed by the target's own draws, must have the target's law; of a lossy rule that is not asked.

    Args:
        make: the rule's class, or a function that makes a new rule with the options to be checked.
        max_examples: how many trees and laws to try.

    Raises:
        AssertionError: if the contract is broken.
        PluginError: if the rule raises an error, draws from what is no law, or returns what the decoder refuses.
    """
    rule = made(make)
    _check_claims(rule)
    kinds = [*KINDS] if rule.lossy or "any" in rule.exact_for else [kind for kind in KINDS if kind in rule.exact_for]

    @settings(max_examples=max_examples, deadline=None, report_multiple_bugs=False, phases=unexplained())
    @given(_trials(kinds))
    def every_walk_keeps_the_contract(trial: Trial) -> None:
        _Walks(make(), trial).check()

    with steady("rule", rule, "Choices"):
        every_walk_keeps_the_contract()


def _check_claims(rule: AcceptanceRule) -> None:
    check_class("rule", rule, AcceptanceRule)
    kinds: Any = getattr(rule, "exact_for", None)
    require(
        isinstance(kinds, frozenset),
        "rule",
        rule,
        f"has exact_for = {kinds!r}; it must be a frozenset of kinds of trees, as frozenset({{'any'}})",
    )
    for kind in sorted(kinds - {*KINDS, "any"}):
        require(False, "rule", rule, f"is exact for {kind!r} trees; kinds are {', '.join(['any', *KINDS])}")
    require(bool(kinds) or rule.lossy, "rule", rule, "is exact for no trees at all and does not say that it is lossy")


@attrs.frozen
class Trial:
    """What a rule is tried on.

    Attributes:
        kind: of the trees.
        drafter: the laws that children are drawn from.
        target: the target's laws.
        shape: of the trees.
        fixed: most fixed children under a node of a "hybrid" tree.
        end: the token that ends the text; None if none does.
        greedy: whether the target's laws are those of temperature 0.
    """

    kind: str
    drafter: TableDrafter
    target: TableDrafter
    shape: Shape
    fixed: int
    end: int | None
    greedy: bool


@st.composite
def _trials(draw: st.DrawFn, kinds: list[str]) -> Trial:
    # What decides most is drawn first: Hypothesis makes what comes late simple more often.
    kind, vocab_size = draw(st.sampled_from(kinds)), draw(st.sampled_from([3, 3, 2]))
    shape = draw(shapes(kind, 4 if vocab_size == 3 else 5))
    fixed, greedy = draw(st.sampled_from([1, 2, 0])), draw(st.sampled_from([False, False, False, True]))
    end = draw(st.sampled_from([None, None, vocab_size - 1]))
    drafter, target = draw(_tables(vocab_size)), draw(_tables(vocab_size))
    if greedy:
        target = TableDrafter(np.eye(vocab_size)[target.laws.argmax(axis=1)])
    return Trial(kind, drafter, target, shape, fixed, end, greedy)


def _tables(vocab_size: int) -> st.SearchStrategy[TableDrafter]:
    rows = st.sampled_from([1, 2, 3]).flatmap(lambda count: st.tuples(*[laws(vocab_size, _WEIGHTS)] * count))
    return rows.map(np.stack).map(TableDrafter)


class _Noted(Choices):
    """Hands choices on and notes them."""

    def __init__(self, choices: Choices) -> None:
        self.laws: list[list[float]] = []
        self.outcomes: list[int] = []
        self._choices = choices

    def pick(self, law: FloatArray) -> int:
        law = np.array(law, dtype=np.float64)
        outcome = self._choices.pick(law)
        self.laws.append(law.tolist())
        self.outcomes.append(outcome)
        return outcome


class _Walks:
    """All walks of a rule in one trial."""

    def __init__(self, rule: AcceptanceRule, trial: Trial) -> None:
        self.rule = rule
        self.trial = trial
        self.tried = False  # whether its tests were compared with those that it says it makes

    def check(self) -> None:
        """Check each walk, and their law."""
        emitted: Law = defaultdict(float)
        for count, (prob, text) in enumerate(enumerate_outcomes(self._walk)):
            if count == MOST_OUTCOMES:
                reject()
            emitted[text] += prob
        if not self.rule.lossy:
            self._check_law(emitted)

    def _walk(self, choices: Choices) -> tuple[int, ...]:
        """What one walk emits."""
        trial, noted = self.trial, _Noted(choices)
        tree = draw_tree(trial.kind, trial.drafter, trial.shape, choices, fixed=trial.fixed)
        told = self._told(tree)
        with blaming("rule", self.rule, "walk"):
            returned = self.rule.walk(tree.copied(), told, noted)
        accepted = checked_walk(self.rule, returned, tree, trial.target.vocab_size)
        script = ScriptedChoices(noted.outcomes, noted.laws)
        with blaming("rule", self.rule, "walk"):
            again = self.rule.walk(tree.copied(), self._told(tree), script)
        self._require(
            script.taken == noted.outcomes
            and again.token == accepted.token
            and np.array_equal(again.path, accepted.path),
            "does not do the same whenever its draws come out the same; what is random must come from Choices alone",
        )
        self._check_walk(tree, accepted, told.asked, noted)
        if self.rule.tests is not None and not self.tried:
            self._check_tests(tree, self.rule.tests)
        return (*tree.tokens[accepted.path[1:]].tolist(), accepted.token)

    def _require(self, holds: bool, what: str) -> None:
        require(holds, "rule", self.rule, what)

    def _told(self, tree: TokenTree) -> TableLaws:
        """The target's laws at a tree, as a rule is told of them."""
        return TableLaws(self.trial.target, tree, self.trial.end)

    def _check_walk(self, tree: TokenTree, accepted: Accepted, asked: list[int], noted: _Noted) -> None:
        path, token, end = accepted.path.tolist(), accepted.token, self.trial.end
        self._require(
            end is None or end not in tree.tokens[path[1:]],
            f"went on after token {end}, which ends the text; the walk must end there",
        )
        for node in asked:
            self._require(
                self.rule.looks_ahead or node in path,
                f"asked for the law at node {node}, and accepted the path {path} without it; "
                "a rule that does so says looks_ahead = True",
            )
        if self.rule.follows_target:
            emitted = [*tree.tokens[path[1:]].tolist(), token]
            self._require(
                noted.outcomes == emitted
                and all(np.array_equal(*laws) for laws in zip(noted.laws, map(self._told(tree).at, path), strict=True)),
                f"emitted {emitted} and drew {noted.outcomes}; it says that it follows_target, so each token is a draw "
                "from the target's law there, and nothing else is drawn",
            )
        if self.trial.greedy and self.rule.follows_argmax:
            expected = self._argmax(tree)
            self._require(
                (path, token) == expected,
                f"accepted the path {path} and token {token} at temperature 0; it says that it follows_argmax, "
                f"and that leads along {expected[0]} to token {expected[1]}",
            )

    def _check_tests(self, tree: TokenTree, order: DrawnOrder) -> None:
        """Compare a walk with the one that a target makes in the rule's place."""
        self.tried = True
        told = self._told(tree)
        laws = np.stack([told.at(node) for node in range(len(tree))])
        ends: frozenset[int] = frozenset() if self.trial.end is None else frozenset({self.trial.end})
        for seed in range(SEEDS):
            choices = SeededChoices(seed)
            with blaming("rule", self.rule, "walk"):
                own = self.rule.walk(tree.copied(), self._told(tree), choices)
            expected, untold = where_tests_lead(order, tree, laws, SeededChoices(seed), ends), SeededChoices(seed)
            untold.used(expected.numbers)
            self._require(
                (own.path.tolist(), own.token) == (expected.path.tolist(), expected.token),
                f"accepted the path {own.path.tolist()} and token {own.token}; it says tests = {order!r}, and with the "
                f"same numbers these lead along {expected.path.tolist()} to token {expected.token}",
            )
            self._require(
                np.array_equal(choices.ahead(1), untold.ahead(1)),
                f"drew with another number of numbers than the {expected.numbers} that its tests take; it says tests = "
                f"{order!r}, and a text goes on with those that are left",
            )

    def _argmax(self, tree: TokenTree) -> tuple[list[int], int]:
        """The longest path of the target's most likely tokens, and the token after it."""
        told = self._told(tree)
        path = [0]
        while True:
            token = int(told.at(path[-1]).argmax())
            child = tree.child(path[-1], token)
            if child is None or told.ends(token):
                return path, token
            path.append(child)

    def _check_law(self, emitted: Law) -> None:
        length = max(map(len, emitted))
        target, end = self.trial.target, self.trial.end

        def whole(law: Law) -> Law:
            return completed(law, length, lambda text: target.law_after([0, *text]), end)

        ours, own = whole(emitted), whole({(): 1.0})
        if distance(ours, own) <= TOLERANCE:
            return
        text = max({*ours, *own}, key=lambda text: abs(ours.get(text, 0.0) - own.get(text, 0.0)))
        self._require(
            False,
            f"changes what comes out: with {self.trial.kind} trees the text {' '.join(map(str, text))} comes with "
            f"probability {ours.get(text, 0.0):.6g}, and sampled from the target with {own.get(text, 0.0):.6g}",
        )
