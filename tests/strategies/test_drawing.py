"""Policies that draw follow the temperature of the request."""

import attrs
import numpy as np
import pytest

from talon_core import Request, TableTarget
from talon_core.certify.exact import Given, ancestral_law, distance, emitted_law
from talon_core.decoding.decoder import Decoder
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build
from talon_core.policy import SequenceInfo
from talon_core.sampling import Sampling, temperature_sampling
from talon_core.testing import TableDrafter
from talon_strategies import SampledChain, Sequoia, TalonSampled, talon_policies
from talon_strategies.drawing import FollowsTheRequest

LAW = np.array([0.5, 0.3, 0.2])
FOLLOWING = [one for one in talon_policies() if issubclass(one, FollowsTheRequest)]


def serving(policy, temperature):
    return policy.begin(SequenceInfo(prompt_length=3, max_new_tokens=8, temperature=temperature))


def first_law(policy, draft):
    """What the first child of the root is drawn from."""
    if isinstance(policy, TalonSampled):  # no fixed children beside it, which the law would leave out
        policy = attrs.evolve(policy, top_k=1)
    law = draft(policy, TableDrafter(LAW[None])).tree.drawn[0].law
    assert law.sum() == pytest.approx(1)
    return law


def test_every_policy_that_draws_from_a_sharpened_law_follows():
    with_temperature = [one for one in talon_policies() if "temperature" in attrs.fields_dict(one)]
    assert with_temperature == FOLLOWING
    assert len(FOLLOWING) == 5


@pytest.mark.parametrize("cls", FOLLOWING)
def test_the_temperature_is_times_that_of_the_request(cls):
    assert serving(cls(temperature=0.8), 0.5) == cls(temperature=0.4, follows=False)
    assert serving(cls(temperature=1.5), 2.0) == cls(temperature=3.0, follows=False)
    assert serving(cls(), 1.0).temperature == cls().temperature


@pytest.mark.parametrize("cls", FOLLOWING)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_one_that_does_not_follow_draws_at_its_own_temperature(cls, temperature):
    policy = cls(temperature=0.8, follows=False)
    assert serving(policy, temperature) == policy


@pytest.mark.parametrize("cls", FOLLOWING)
def test_a_greedy_request_leaves_the_temperature_as_it_is(cls):
    assert serving(cls(temperature=0.8), 0.0) == cls(temperature=0.8)


@pytest.mark.parametrize("cls", FOLLOWING)
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_children_are_drawn_from_the_law_at_that_temperature(cls, temperature, draft):
    policy = cls(temperature=0.8)
    powers = LAW ** (1 / (0.8 * temperature))
    assert first_law(serving(policy, temperature), draft) == pytest.approx(powers / powers.sum())
    unfollowed = first_law(serving(cls(temperature=0.8, follows=False), temperature), draft)
    assert unfollowed == pytest.approx(first_law(policy, draft))


def test_each_sequence_of_a_decoder_follows_its_own_request_and_the_policy_stays_as_it_is():
    table = np.random.default_rng(3).normal(size=(3, 3, 3))
    policy = Sequoia(budget=4, depth=2, temperature=0.5)
    decoder = Decoder(
        TableTarget(table), build(load_registry(), "rule", "traversal"), policy, Given(TableDrafter(LAW[None]))
    )
    temperatures = [1.0, 0.6, 0.0, 2.0]
    requests = [Request(np.array([0]), 4, temperature_sampling(one)) for one in temperatures]
    batch = decoder.batch(requests, 4)
    next(batch)
    assert [one.policy.temperature for one in batch.sequences] == pytest.approx([0.5, 0.3, 0.5, 1.0])
    batch.finish()
    assert decoder.policy == Sequoia(budget=4, depth=2, temperature=0.5)


def test_a_processor_that_stands_for_a_temperature_is_not_guessed():
    """Only what the request says its temperature is counts, which is 1 where it is not said."""
    sampling = Sampling(True, (lambda _ids, scores: scores / 0.5,))
    target = TableTarget(np.random.default_rng(3).normal(size=(3, 3, 3)))
    rule = build(load_registry(), "rule", "block")
    decoder = Decoder(target, rule, SampledChain(length=2, temperature=0.7), Given(TableDrafter(LAW[None])))
    assert decoder.engine.policy_for(Request(np.array([0]), 4, sampling)).temperature == 0.7


@pytest.mark.parametrize("spec", ["sampled-chain:length=2,temperature=0.5", "specinfer:widths=2,temperature=2.0"])
@pytest.mark.parametrize("temperature", [0.4, 2.5])
def test_following_changes_the_trees_and_not_the_law_of_the_output(spec, temperature):
    registry = load_registry()
    target = TableTarget(np.random.default_rng(5).normal(size=(3, 3, 3)))
    request = Request(np.array([0]), 2, temperature_sampling(temperature))
    policy = build(registry, "tree policy", spec)
    decoder = Decoder(target, build(registry, "rule", policy.default_rule), policy, Given(TableDrafter(LAW[None])))
    assert distance(emitted_law(decoder, request), ancestral_law(target, request)) <= 1e-12


@pytest.mark.parametrize("cls", FOLLOWING)
@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e300, 1.7e308])
def test_temperatures_at_the_ends_of_what_numbers_can_say_are_served(cls, temperature, draft):
    for own in (1e-3, 50.0):
        law = first_law(serving(cls(temperature=own), temperature), draft)
        assert law == pytest.approx([1, 0, 0] if temperature < 1 else [1 / 3] * 3)
