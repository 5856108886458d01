"""What the proof rests on: nobody foresees a draw, and a law stays as it was when something was drawn from it."""

import copy
from typing import Any

import attrs
import numpy as np

from talon_core import Candidates, Growth, Request, TableTarget, TreePolicy
from talon_core.certify.exact import Given
from talon_core.decoder import Decoder
from talon_core.sampling import Sampling
from talon_core.testing import TableDrafter
from talon_strategies import Chain, Match, RecursiveRejection, SampledChain, TalonSampled

TARGET = TableTarget(np.zeros((2, 2)))
DRAFTER = Given(TableDrafter([[0.5, 0.5]]))


def request(tokens: int = 64) -> Request:
    return Request(np.array([0]), tokens, Sampling(do_sample=True), seed=3)


@attrs.frozen
class Foresees(TreePolicy):
    """Looks at the coming draws of a copy, and throws its own away until it likes the next one."""

    name = "foresees"
    budget: int = 2

    def grow(self, tree: Any, candidates: Candidates) -> Growth:
        half = np.array([0.5, 0.5])
        while copy.deepcopy(choices).pick(half) == 1:
            choices.pick(half)
        return Growth(candidates.best(1))


def test_a_policy_that_looks_ahead_in_its_choices_does_not_see_the_rules() -> None:
    (result,) = Decoder(TARGET, Match(), Foresees(), DRAFTER).run_all([request()])
    firsts = [int(round_.tokens[0]) for round_ in result.rounds]
    assert 0.25 < np.mean(firsts) < 0.75


@attrs.frozen
class Peeks(TableDrafter):
    """Writes down which token a copy of its choices draws next."""

    seen: list[int] = attrs.field(factory=list)

    def propose(self, trees: Any, frontiers: Any, widths: Any, choices: Any) -> Any:
        self.seen.append(copy.deepcopy(choices[0]).pick(np.array([0.5, 0.5])))
        return super().propose(trees, frontiers, widths, choices)


def test_a_drafter_that_looks_ahead_in_its_choices_sees_neither_the_policys_nor_the_rules() -> None:
    drafter = Peeks([[0.5, 0.5]])
    (result,) = Decoder(TARGET, RecursiveRejection(), SampledChain(length=1), Given(drafter)).run_all([request(200)])
    drawn = [int(round_.tree.tokens[1]) for round_ in result.rounds if len(round_.tree) > 1]
    emitted = [int(round_.tokens[-1]) for round_ in result.rounds]
    for come in (drawn, emitted):
        agree = np.mean([one == other for one, other in zip(drafter.seen, come, strict=False)])
        assert 0.3 < agree < 0.7


def test_with_match_a_seed_gives_the_same_text_with_policies_that_draw_too() -> None:
    policies = [None, Chain(), SampledChain(), TalonSampled()]
    texts = {tuple(Decoder(TARGET, Match(), policy, DRAFTER).run_all([request()])[0].token_ids) for policy in policies}
    assert len(texts) == 1


@attrs.frozen
class Rewrites(TableDrafter):
    """Changes its law when something was drawn from it."""

    own: Any = attrs.field(factory=lambda: np.array([0.5, 0.5]))

    def propose(self, trees: Any, frontiers: Any, widths: Any, choices: Any) -> Any:
        self.own.flags.writeable = True
        self.own[:] = [0.5, 0.5] if len(trees[0]) == 1 else [1e-9, 1 - 1e-9]
        self.own.flags.writeable = False
        offered = super().propose(trees, frontiers, widths, choices)
        return [attrs.evolve(one, law=lambda row: self.own) for one in offered]


def test_a_law_that_its_drafter_changes_after_the_draw_is_tested_as_it_was() -> None:
    decoder = Decoder(TARGET, RecursiveRejection(), SampledChain(length=2), Given(Rewrites([[0.5, 0.5]])))
    (result,) = decoder.run_all([request(400)])
    assert 0.4 < np.mean([int(round_.tokens[0]) for round_ in result.rounds]) < 0.6
