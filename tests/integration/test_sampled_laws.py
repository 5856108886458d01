"""Above temperature 0, SmolLM2's texts come as often as its own plain passes say.

`test_enumerated_laws.py` computes their probabilities, from a drafter that is cut to two tokens. Here seeded choices
draw from the whole laws of the drafter and the model, as they do for a user.

675 texts of three tokens are made, where 27 are possible. How often they come is held against their exact probabilities
by G-tests of the first token, of the first two and of all three, with a false alarm rate of 1e-4 together. The seeds
are fixed, so on one machine a version of the code passes always or never. If the probabilities of the two likeliest
tokens were wrong by 0.1 in every first, every second or every third place, that would be found with a probability above
0.85: `test_an_error_of_a_tenth_would_be_found` tries it.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from talon_core import build
from talon_core.decoding.decoder import Decoder
from talon_core.plugins.parts import Parts
from talon_core.rounds import Round
from talon_tests.plain_law import OPTIONS, TOKENS, Texts, firsts
from talon_tests.sleeping import sleeping
from talon_tests.wrong import NoLeftover

SAMPLES, BATCH = 675, 45
FALSE_ALARM = 1e-4


def g_test(counts: Texts, law: Texts) -> float:
    """The probability of counts that are as far from the law, or farther, if it is the true one (log-likelihood ratio).

    Cells are put together, rarest first, until 5 are expected in each.
    """
    if set(counts) - set(law):
        return 0.0
    total = sum(counts.values())
    groups, group = [], np.zeros(2)
    for tokens in sorted(law, key=lambda one: law[one]):
        group = group + np.array([total * law[tokens], counts.get(tokens, 0)])
        if group[0] >= 5:
            groups.append(group)
            group = np.zeros(2)
    groups[-1] += group
    expected, seen = np.array(groups).T
    some = seen > 0
    g = 2 * float((seen[some] * np.log(seen[some] / expected[some])).sum())
    half = torch.tensor([(len(groups) - 1) / 2, g / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(*half))


def surprise(counts: Texts, law: Texts) -> float:
    """The least of the G-tests of the first token, the first two, and so on, times how many there are."""
    return TOKENS * min(g_test(firsts(counts, length), firsts(law, length)) for length in range(1, TOKENS + 1))


def sampled(
    decoder: Decoder,
    ids: list[int],
    samples: int = SAMPLES,
    of: Callable[[Round], float] = lambda round_: round_.accepted,
) -> tuple[Texts, float]:
    """How often each text came out, and how many drafted tokens were accepted for each, or what else its rounds had."""
    request = decoder.frontend.request(np.array(ids), OPTIONS)
    requests = [attrs.evolve(request, seed=seed) for seed in range(samples)]
    decoder.run_all([attrs.evolve(request, max_new_tokens=1)])  # the prompt is read, and kept for all the others
    decoder.engine.allocator = None  # all that is drafted is verified
    batch = decoder.batch(requests, BATCH)
    batch.finish()
    results = batch.results()
    accepted = sum(of(round_) for result in results for round_ in result.rounds)
    return Counter(tuple(result.token_ids) for result in results), accepted / samples


@pytest.mark.models
@pytest.mark.slow
def test_texts_have_the_models_law(smollm: tuple[Any, Any], shared_target: Any, ids: list[int], law: Texts) -> None:
    parts = Parts("eagle3", "talon-sampled:budget=4,top_k=2", "hybrid", graphs=False)
    counts, accepted = sampled(shared_target(*smollm, parts), ids)
    assert surprise(counts, law) >= FALSE_ALARM
    assert accepted >= 0.4  # or little of it would be about drafting


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "rule", "schedule"),
    [
        ("sampled-chain:length=1", "block", "cached:budget=2"),
        pytest.param("talon-sampled:budget=4,top_k=2", "hybrid", "pearl", marks=pytest.mark.matrix),
    ],
)
def test_texts_have_the_models_law_while_drafting_goes_on(
    smollm: tuple[Any, Any], shared_target: Any, ids: list[int], law: Texts, policy: str, rule: str, schedule: str
) -> None:
    """Whatever the timing is: the worker sleeps at random."""
    usual = shared_target(*smollm, Parts("eagle3", policy, rule, graphs=False))
    how: dict[str, Any] = {"schedule": build("schedule", schedule), "worker": sleeping(0, 0.002)}
    decoder = Decoder(usual.target, usual.rule, usual.policy, usual.drafter, usual.frontend, **how)
    counts, hits = sampled(decoder, ids, of=lambda round_: round_.hit is True)
    assert surprise(counts, law) >= FALSE_ALARM
    assert hits >= 0.05  # of three tokens two can begin a round, and the last is never drafted for


def drawn(law: Texts, rng: np.random.Generator) -> Texts:
    """How often texts come that are drawn from a law."""
    return dict(zip(law, rng.multinomial(SAMPLES, list(law.values())).tolist(), strict=True))


def wrong_by_a_tenth(law: Texts, place: int) -> Texts:
    """The law with 0.1 of the probability at one place moved from the likeliest token there to the next."""
    before, after = firsts(law, place), firsts(law, place + 1)
    wrong = {}
    for tokens, prob in law.items():
        given = tokens[:place]
        here = {one: p / before[given] for one, p in after.items() if one[:place] == given}
        best, second = sorted(here, key=lambda one: -here[one])[:2]
        own = tokens[: place + 1]
        wrong[tokens] = prob * (here[own] + 0.1 * ((own == second) - int(own == best))) / here[own]
    return wrong


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.parametrize("place", range(TOKENS))
def test_an_error_of_a_tenth_would_be_found(law: Texts, place: int) -> None:
    wrong, rng = wrong_by_a_tenth(law, place), np.random.default_rng(place)
    assert sum(wrong.values()) == pytest.approx(1.0)
    found = [surprise(drawn(wrong, rng), law) < FALSE_ALARM for _ in range(200)]
    assert np.mean(found) > 0.85


@pytest.mark.models
@pytest.mark.slow
def test_false_alarms_are_as_rare_as_is_said(law: Texts) -> None:
    rng = np.random.default_rng(0)
    surprises = np.array([surprise(drawn(law, rng), law) for _ in range(2000)])
    assert 0.01 < np.mean(surprises < 0.03) < 0.045
    assert surprises.min() > FALSE_ALARM / 10


def test_a_text_that_cannot_be_is_found_at_once() -> None:
    assert g_test({(1,): 10, (2,): 10}, {(1,): 0.5, (2,): 0.5}) == 1.0
    assert g_test({(1,): 10, (2,): 9, (3,): 1}, {(1,): 0.5, (2,): 0.5}) == 0.0


def test_the_g_test_is_that_of_the_textbook() -> None:
    counts, law = {(1,): 30, (2,): 14, (3,): 16}, {(1,): 0.5, (2,): 0.25, (3,): 0.25}
    g = 2 * (30 * np.log(30 / 30) + 14 * np.log(14 / 15) + 16 * np.log(16 / 15))
    assert g_test(counts, law) == pytest.approx(np.exp(-g / 2))  # with two degrees of freedom
    rare = {(1,): 0.5, (2,): 0.25, (3,): 0.2, (4,): 0.03, (5,): 0.02}
    assert g_test(counts, rare) == pytest.approx(g_test(counts, law))


@pytest.mark.models
@pytest.mark.slow
def test_a_wrong_rule_is_found(smollm: tuple[Any, Any], shared_target: Any, ids: list[int], law: Texts) -> None:
    decoder = shared_target(*smollm, Parts("eagle3", "sampled-chain:length=2", NoLeftover(), graphs=False))
    counts, _ = sampled(decoder, ids, samples=SAMPLES // 4)
    assert set(counts) <= set(law)  # so it is the counts that tell
    assert surprise(counts, law) < FALSE_ALARM
