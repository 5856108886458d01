"""Losslessness by enumeration: whatever drafts, the law of the output is the target's own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from talon_core import Request, TableTarget, TreePolicy
from talon_core.certify.composed import composed_law
from talon_core.certify.exact import Given, Law, ancestral_law, distance, emitted_law
from talon_core.decoding.decoder import Decoder
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import describe_options
from talon_core.sampling import Sampling
from talon_core.testing import laws, table_drafters
from talon_core.testing.odd_policies import CoinTosser, Erratic
from talon_strategies.rules.match import Match

TOLERANCE = 1e-12
VOCAB = 3
SMALL = {"budget": 5, "top_k": 2, "depth": 2, "checked": (1,)}


def small_policies() -> st.SearchStrategy[TreePolicy]:
    """Every registered policy of fixed children with a small budget, and two that no paper would propose.

    Drawn children multiply the outcomes; `test_certify.py` has worlds small enough for them.
    """
    made = [
        entry.cls(**{option: value for option, value in SMALL.items() if option in describe_options(entry.cls)})
        for entry in load_registry().entries["tree policy"].values()
        if entry.cls.children == "deterministic"
    ]
    odd = st.builds(Erratic, seed=st.integers(0, 10_000), budget=st.integers(2, 7))
    return st.sampled_from(made) | odd | st.just(CoinTosser())


def targets() -> st.SearchStrategy[TableTarget]:
    """Targets that look back two tokens; some tokens are impossible."""

    def build(rows: list[np.ndarray], context: int | None) -> TableTarget:
        with np.errstate(divide="ignore"):
            return TableTarget(np.log(np.stack(rows)).reshape(VOCAB, VOCAB, VOCAB), context)

    rows = st.lists(laws(VOCAB), min_size=VOCAB**2, max_size=VOCAB**2)
    return st.builds(build, rows, st.none() | st.integers(4, 6))


def processors() -> st.SearchStrategy[tuple[LogitsProcessor, ...]]:
    """Processors of transformers, those that look at the prefix among them."""
    one = st.sampled_from(
        [
            RepetitionPenaltyLogitsProcessor(1.7),
            NoRepeatNGramLogitsProcessor(2),
            SuppressTokensLogitsProcessor([1]),
            TemperatureLogitsWarper(0.6),
            TemperatureLogitsWarper(2.5),
            TopKLogitsWarper(2),
            TopPLogitsWarper(0.7),
            MinPLogitsWarper(0.2),
            TypicalLogitsWarper(0.8),
        ]
    )
    return st.lists(one, max_size=2).map(tuple)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Short generations: greedy and sampled, with end tokens and processors."""
    return Request(
        ids=np.array(draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3)), dtype=np.int64),
        max_new_tokens=draw(st.integers(1, 4)),
        sampling=Sampling(draw(st.booleans()) or draw(st.booleans()), draw(processors())),
        eos=draw(st.sampled_from([frozenset(), frozenset({2}), frozenset({0, 1})])),
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(targets(), table_drafters(VOCAB), small_policies(), requests())
def test_the_law_of_several_rounds_is_the_targets_own(target, drafter, policy, request):
    if request.sampling.processors:  # a processor may leave no token at all; then there is no law to compare
        request = _possible(target, request)
    decoder = Decoder(target, Match(), policy, Given(drafter))
    assert distance(_law(decoder, request), ancestral_law(target, request)) <= TOLERANCE


def _law(decoder: Decoder, request: Request) -> Law:
    """By whole generations; by rounds that are chained where coins would make ten thousand generations of one world.

    `test_composed.py` has both of the same policy, in worlds of up to three tokens.
    """
    if not isinstance(decoder.policy, CoinTosser) or request.max_new_tokens < 3:
        return emitted_law(decoder, request)
    composed = composed_law(decoder, request, most=10_000)
    assert composed is not None
    return composed.law


def _possible(target: TableTarget, request: Request) -> Request:
    """The request, or one without processors where these would forbid every token somewhere."""
    try:
        ancestral_law(target, request)
    except ValueError:
        return Request(request.ids, request.max_new_tokens, Sampling(request.sampling.do_sample), request.eos)
    return request
