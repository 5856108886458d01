"""What the proof rests on: nobody foresees a draw, and a law stays as it was when something was drawn from it."""

import copy
import pickle
import re
from typing import Any

import attrs
import numpy as np
import torch

from talon_core import Candidates, Growth, Proposed, Request, SeededChoices, TableTarget, TreePolicy
from talon_core.certify.exact import Given
from talon_core.decoding.decoder import Decoder
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

    def grow(self, tree: Any, candidates: Candidates, choices: Any) -> Growth:
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
    """Takes apart whatever it is given."""

    seen: list[bytes] = attrs.field(factory=list)

    def open(self, slot: int, prompt: Any, room: int) -> None:
        self.seen.append(pickle.dumps((slot, prompt, room)))

    def read(self, parts: Any) -> None:
        self.seen.append(pickle.dumps(parts))

    def propose(self, frontiers: Any) -> Any:
        self.seen.append(pickle.dumps(frontiers))
        return super().propose(frontiers)

    def commit(self, committed: Any) -> None:
        self.seen.append(pickle.dumps(committed))


def test_in_what_a_drafter_is_given_there_is_nothing_that_draws() -> None:
    draws = re.compile(rb"Choices|PCG64|[Gg]enerator|random")
    assert draws.search(pickle.dumps(SeededChoices(0))), "or one would not be seen"
    drafter = Peeks([[0.5, 0.5]])
    Decoder(TARGET, RecursiveRejection(), SampledChain(length=2), Given(drafter)).run_all([request()])
    assert len(drafter.seen) > 50
    assert not any(map(draws.search, drafter.seen))


def test_a_drafter_that_draws_for_itself_moves_neither_the_policys_draws_nor_the_rules() -> None:
    texts = set()
    for draws in (0, 1, 7):
        np.random.seed(5)  # noqa: NPY002 - what a drafter might use
        drafter = Given(Throws([[0.5, 0.5]], draws=draws))
        (result,) = Decoder(TARGET, RecursiveRejection(), SampledChain(length=1), drafter).run_all([request()])
        texts.add(tuple((*round_.tree.tokens, *round_.tokens) for round_ in result.rounds))
    assert len(texts) == 1


@attrs.frozen
class Throws(TableDrafter):
    """Draws from the global generators, and does nothing with it."""

    draws: int = 0

    def propose(self, frontiers: Any) -> Any:
        np.random.random(self.draws)  # noqa: NPY002
        torch.rand(self.draws)
        return super().propose(frontiers)


def test_with_match_a_seed_gives_the_same_text_with_policies_that_draw_too() -> None:
    policies = [None, Chain(), SampledChain(), TalonSampled()]
    texts = {tuple(Decoder(TARGET, Match(), policy, DRAFTER).run_all([request()])[0].token_ids) for policy in policies}
    assert len(texts) == 1


@attrs.frozen
class Rewrites(TableDrafter):
    """Changes its law when something was drawn from it."""

    own: Any = attrs.field(factory=lambda: np.array([0.5, 0.5]))

    def propose(self, frontiers: Any) -> Any:
        self.own.flags.writeable = True
        self.own[:] = [0.5, 0.5] if len(frontiers[0].tree) == 1 else [1e-9, 1 - 1e-9]
        self.own.flags.writeable = False
        offered = super().propose(frontiers).candidates
        return Proposed([attrs.evolve(one, law=lambda row: self.own) for one in offered])


def test_a_law_that_its_drafter_changes_after_the_draw_is_tested_as_it_was() -> None:
    decoder = Decoder(TARGET, RecursiveRejection(), SampledChain(length=2), Given(Rewrites([[0.5, 0.5]])))
    (result,) = decoder.run_all([request(400)])
    assert 0.4 < np.mean([int(round_.tokens[0]) for round_ in result.rounds]) < 0.6
