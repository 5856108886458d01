"""The enumeration of `talon_core.certify.exact` is no rubber stamp: its worlds accept something, and little is seen."""

from collections import defaultdict

import attrs
import numpy as np
import pytest

from talon_core import Request, TableTarget
from talon_core.certify.exact import Given, ancestral_law, distance, emitted_law
from talon_core.choices import enumerate_outcomes
from talon_core.decoding.decoder import Decoder
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import describe_options
from talon_core.sampling import Sampling
from talon_core.testing import TableDrafter
from talon_core.testing.odd_policies import CoinTosser, Erratic
from talon_strategies.chain import Chain
from talon_strategies.rules.match import Match
from talon_strategies.static import StaticTree

TARGET = TableTarget(np.log([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3], [0.1, 0.2, 0.7]]))
DRAFTER = TableDrafter([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.7, 0.1, 0.2]])
"""After the prompt's 0 its best guesses are 1 and then 0, as are the target's."""
POLICIES = {"chain": Chain(length=2), "tree": StaticTree(shape="0;1;0.0;0.1")}
SAMPLED = Request(ids=np.array([0]), max_new_tokens=3, sampling=Sampling(do_sample=True))
ENDING = attrs.evolve(SAMPLED, eos=frozenset({2}))
SMALL = {"budget": 5, "top_k": 2, "depth": 2, "checked": (1,), "h": 0.9}


def found(rule, policy, request):
    """How far a rule's exact law is from the target's."""
    emitted = emitted_law(Decoder(TARGET, rule, policy, Given(DRAFTER)), request)
    assert sum(emitted.values()) == pytest.approx(1, abs=1e-12)
    return distance(emitted, ancestral_law(TARGET, request))


EACH_POLICY = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
BOTH_REQUESTS = pytest.mark.parametrize("request_", [SAMPLED, ENDING], ids=["open", "ending"])


@EACH_POLICY
@BOTH_REQUESTS
def test_the_right_rule_passes_on_the_same_world(policy, request_):
    assert found(Match(), policy, request_) <= 1e-12


def test_a_law_that_is_off_by_little_is_caught():
    other = TableTarget(TARGET.logits + 1e-9 * np.arange(9).reshape(3, 3) ** 2)
    emitted = emitted_law(Decoder(other, Match(), POLICIES["tree"], Given(DRAFTER)), SAMPLED)
    assert 1e-12 < distance(emitted, ancestral_law(TARGET, SAMPLED)) < 1e-7


def test_the_law_to_be_met_is_the_product_of_the_tables_entries():
    law = ancestral_law(TARGET, attrs.evolve(ENDING, max_new_tokens=2))
    assert law == pytest.approx(
        {(2,): 0.3, (0, 0): 0.04, (0, 1): 0.1, (0, 2): 0.06, (1, 0): 0.3, (1, 1): 0.05, (1, 2): 0.15}
    )


def accepted_law(policy):
    """The exact law of the number of drafted tokens that are accepted in a generation."""
    law = defaultdict(float)

    def experiment(choices):
        generation = Decoder(TARGET, Match(), policy, Given(DRAFTER)).run(SAMPLED, choices)
        return sum(round_.accepted for round_ in generation)

    for prob, accepted in enumerate_outcomes(experiment):
        law[accepted] += prob
    return law


def every_policy():
    for name, entry in load_registry().entries["tree policy"].items():
        if entry.cls.children != "deterministic":
            continue  # drawn children multiply the outcomes; certificates count what is accepted
        options = {option: value for option, value in SMALL.items() if option in describe_options(entry.cls)}
        yield pytest.param(entry.cls(**options), id=name)


@pytest.mark.parametrize("policy", [*every_policy(), pytest.param(CoinTosser(), id="coin-tosser")])
def test_the_enumerated_worlds_really_accept_what_is_drafted(policy):
    law = accepted_law(policy)
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    assert law[0] < 0.75
    assert max(accepted for accepted, prob in law.items() if prob > 0.01) >= 2


def test_of_the_erratic_policies_most_get_something_accepted():
    laws = [accepted_law(Erratic(seed)) for seed in range(12)]
    assert sum(law[0] < 0.9 for law in laws) > 6
