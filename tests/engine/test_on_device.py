"""Texts that a target draws by itself: the rule's own, to the token, whatever runs beside them."""

import itertools
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from transformers.generation.logits_process import SuppressTokensLogitsProcessor

from talon_core.choices import Choices, Foreseen, ScriptedChoices, SeededChoices
from talon_core.decoding.decoder import Decoder
from talon_core.drawn import Drawn
from talon_core.engine.acceptors import NOT_WALKED, Acceptor, Acceptors, Offered
from talon_core.engine.engine import Engine
from talon_core.engine.sequence import Sequence as Decoded
from talon_core.hf.frontend import HFFrontend
from talon_core.hf.target import HFTarget
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build
from talon_core.request import Request
from talon_core.rounds import Round
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.sampling import Sampling
from talon_core.table import TableTarget
from talon_core.target import Target
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import TapedBackend, TapeRecorder
from talon_core.tree import FloatArray, TokenTree
from talon_kernels import SdpaAttention
from talon_strategies import (
    Block,
    Hybrid,
    Match,
    RecursiveRejection,
    RejectionWithoutReplacement,
    Traversal,
    Typical,
)
from talon_tests.tiny_models import tiny_model

PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [11], [20, 21, 22, 23, 20, 21], [9, 9, 9]]
METHODS: dict[str, tuple[str | None, str | None]] = {
    "plain": (None, None),
    "ngram": ("ngram", "talon:budget=8,top_k=3"),
    "asking beside": ("lookahead", "talon:budget=8,top_k=3"),
}
TESTED: dict[str, tuple[AcceptanceRule, tuple[str, str]]] = {
    "independent draws": (RecursiveRejection(), ("ngram", "specinfer:widths=2;1")),
    "without replacement": (RejectionWithoutReplacement(), ("ngram", "dyspec:budget=8,depth=3")),
    "fixed and drawn": (Hybrid(), ("ngram", "talon-sampled:budget=8,top_k=3,temperature=1")),
    "fixed and drawn, asking beside": (Hybrid(), ("lookahead", "talon-sampled:budget=8,top_k=3,temperature=1")),
    "as a block": (Block(), ("ngram", "sampled-chain:length=3")),
    "leaves first": (Traversal(), ("ngram", "dyspec:budget=8,depth=3")),
}
"""Drawn children of all kinds: the rule, and who draws them."""
WARPED: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 20},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 0},
    {"temperature": 1.5, "min_p": 0.05, "suppress_tokens": [5, 9]},
    {"temperature": 0.9, "typical_p": 0.9, "epsilon_cutoff": 0.001, "renormalize_logits": True},
]
DRAWN = {"max_new_tokens": 12, "do_sample": True}
LOOKS_BACK = "logits processor 'RepetitionPenaltyLogitsProcessor' may look at more than the scores"


@cache
def model() -> Any:
    return tiny_model("llama")


def decoder_of(
    of: Any, method: str = "ngram", on_device: bool = True, recorded: bool = True, rule: AcceptanceRule | None = None
) -> Decoder:
    registry, (drafter, policy) = load_registry(), METHODS[method] if method in METHODS else TESTED[method][1]
    graphs = TapeRecorder if on_device and recorded else None
    backend = TapedBackend(PlainDevice()) if on_device else SdpaAttention()
    target = HFTarget(of, backend, graphs=graphs, probe=False)  # `test_device.py` has such ones probed
    assert (target.can_walk, target.can_draw) == (on_device, on_device)
    drafts = build(registry, "drafter", drafter) if drafter else None
    decides = build(registry, "tree policy", policy) if policy else None
    return Decoder(target, rule or Match(), decides, drafts, HFFrontend(of))


def requests(decoder: Decoder, *options: dict[str, Any]) -> list[Request]:
    """A request with each of these options, of each prompt in turn."""
    prompts = itertools.cycle(PROMPTS)
    return [decoder.requests([next(prompts)], {**DRAWN, "seed": 3 + at, **own})[0] for at, own in enumerate(options)]


def rounds_of(results: Sequence[Any]) -> list[Round]:
    return [one for result in results for one in result.rounds]


class Told(Foreseen):
    """Draws with numbers that are given, and lets nobody draw on the host."""

    def __init__(self, numbers: Sequence[float]) -> None:
        self.numbers = [*numbers]

    def ahead(self, count: int) -> FloatArray:
        return np.array([*self.numbers, *[0.5] * count][:count])

    def used(self, count: int) -> None:
        self.numbers = self.numbers[count:]

    def pick(self, law: FloatArray) -> int:
        raise AssertionError("the rule draws on the host")


def finished(decoder: Decoder, sequences: Sequence[Decoded]) -> None:
    while not all(one.finished for one in sequences):
        decoder.engine.step()


@pytest.mark.parametrize("method", METHODS)
def test_each_text_comes_from_as_many_numbers_as_its_probability_says(method: str) -> None:
    """All texts of three tokens out of four, of a whole decoder: in all corners of the box of numbers of each text.

    The edges of the boxes are as long as the plain model's probabilities. Its logits and those of the tree's nodes are
    rounded in different ways, and by as much the corners lie inside.
    """
    of, prompt, inside = tiny_model("llama", vocab_size=4, pad_token_id=None), [1, 2, 3, 1, 2], 1e-4
    decoder = decoder_of(of, method)
    options = {"temperature": 3.0, "top_k": 3, "do_sample": True, "max_new_tokens": 3}
    (request,) = decoder.requests([prompt], options)

    @cache
    def law_after(text: tuple[int, ...]) -> FloatArray:
        with torch.inference_mode():
            scores = of(torch.tensor([[*prompt, *text]])).logits[0, -1].double() / 3.0
            best = scores.masked_fill(scores < scores.topk(3).values[-1], -torch.inf)
            return np.asarray(torch.softmax(best, dim=-1).numpy())

    volume, wanted = 0.0, []
    for text in itertools.product(range(4), repeat=3):
        laws = [law_after(text[:place]) for place in range(3)]
        probs = [law[token] for law, token in zip(laws, text, strict=True)]
        if min(probs) == 0:
            continue
        assert min(probs) > 10 * inside  # or little would be seen of it
        volume += np.prod(probs)
        ends = [law.cumsum()[token] for law, token in zip(laws, text, strict=True)]
        edges = [(end - prob + inside, end - inside) for end, prob in zip(ends, probs, strict=True)]
        wanted += [(text, corner) for corner in itertools.product(*edges)]
    assert volume == pytest.approx(1.0, abs=1e-9)
    sequences = [decoder.engine.submit(attrs.evolve(request), Told(corner)) for _, corner in wanted]
    finished(decoder, sequences)
    assert [tuple(one.token_ids) for one in sequences] == [text for text, _ in wanted]
    rounds = [round_ for one in sequences for round_ in one.rounds]
    assert {(one.laws_on_host, one.on_host) for one in rounds} == {(0, None)}
    if method == "ngram":
        assert any(one.accepted for one in rounds)


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_a_seed_gives_the_text_that_it_gives_on_the_host(method: str, recorded: bool) -> None:
    host, device = decoder_of(model(), method, on_device=False), decoder_of(model(), method, recorded=recorded)
    asked = requests(host, *WARPED)
    expected = host.run_all(asked)
    assert all(one.laws_on_host == len(one.path) and one.on_host is None for one in rounds_of(expected))
    together = device.run_all(asked)
    alone = [device.run_all([one])[0] for one in asked]
    for results in (together, alone):
        assert [one.token_ids for one in results] == [one.token_ids for one in expected]
        assert {(one.laws_on_host, one.on_host) for one in rounds_of(results)} == {(0, None)}
    assert len({tuple(one.token_ids) for one in expected}) == len(WARPED)


@pytest.mark.parametrize("method", TESTED)
def test_drawn_children_are_tested_there_with_the_text_that_a_seed_gives_on_the_host(method: str) -> None:
    rule = TESTED[method][0]
    host, device = (decoder_of(model(), method, on_device, rule=rule) for on_device in (False, True))
    asked = requests(host, *WARPED[:3], {"temperature": 1.1, "eos_token_id": 60})
    expected = host.run_all(asked)
    together = device.run_all(asked)
    alone = [device.run_all([one])[0] for one in asked]
    for results in (together, alone):
        assert [one.token_ids for one in results] == [one.token_ids for one in expected]
        assert [one.path.tolist() for one in rounds_of(results)] == [one.path.tolist() for one in rounds_of(expected)]
    assert {(one.laws_on_host, one.on_host) for one in rounds_of(alone)} == {(0, None)}
    if method != "fixed and drawn, asking beside":  # what its drafter finds is hardly ever drawn
        assert any(one.accepted for one in rounds_of(alone))
    assert all(one.laws_on_host for one in rounds_of(expected))
    looking_back = requests(device, {"temperature": 0.7, "repetition_penalty": 1.3})
    (result,) = device.run_all(looking_back)
    assert {one.on_host for one in result.rounds} == {LOOKS_BACK}
    assert all(one.laws_on_host for one in result.rounds)


def test_those_beside_it_may_be_greedy_or_on_the_host() -> None:
    """A batch of all kinds: each gets the text that it gets alone, and says where it was chosen."""
    device, host = decoder_of(model()), decoder_of(model(), on_device=False)
    greedy = {"do_sample": False, "temperature": 0.0}
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.7},
        greedy,
        {"temperature": 0.7, "repetition_penalty": 1.3},
        {**greedy, "suppress_tokens": [6, 7]},
        {**greedy, "repetition_penalty": 1.8},
        {"temperature": 1.2, "eos_token_id": 96},
    ]
    asked = requests(device, *kinds)
    results = device.run_all(asked)
    assert [one.token_ids for one in results] == [host.run_all([one])[0].token_ids for one in asked]
    assert [one.token_ids for one in results] == [device.run_all([one])[0].token_ids for one in asked]
    said = [{one.on_host for one in result.rounds} for result in results]
    assert said[:5] == [{None}, {None}, {LOOKS_BACK}, {None}, {LOOKS_BACK}]
    assert said[5] <= {NOT_WALKED, None}  # beside others its text ends with another token
    assert NOT_WALKED in said[5]
    for result in results:
        for one in result.rounds:
            assert one.laws_on_host == (0 if one.on_host is None else len(one.path))


def test_where_there_is_no_law_one_text_ends_and_says_so_as_on_the_host() -> None:
    found = {}
    for on_device in (True, False):
        decoder = decoder_of(model(), on_device=on_device)
        good, bad = requests(decoder, {"temperature": 0.7}, {"temperature": 0.7, "suppress_tokens": [*range(97)]})
        sequences = [decoder.engine.submit(one) for one in (good, bad)]
        finished(decoder, sequences)
        assert sequences[0].error is None
        assert isinstance(sequences[1].error, ValueError)
        found[on_device] = sequences[0].token_ids, str(sequences[1].error)
    assert found[True] == found[False]
    assert found[True][1].startswith("there is no law to draw from after 1 tokens")


@pytest.mark.parametrize(("place", "name"), [(0, "temperature"), (1, "top_k")])
def test_a_processor_that_fails_ends_its_own_text(place: int, name: str) -> None:
    decoder = decoder_of(model())
    good, other, bad = requests(decoder, *[{"temperature": 0.7, "top_k": 5}] * 3)
    expected = decoder.run_all([good])[0].token_ids
    setattr(bad.sampling.processors[place], name, "five")
    sequences = [decoder.engine.submit(attrs.evolve(one)) for one in (good, other, bad)]
    finished(decoder, sequences)
    assert sequences[0].token_ids == expected
    assert [one.error is None for one in sequences] == [True, True, False]
    assert isinstance(sequences[2].error, TypeError)


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (lambda count: 1 / 0, "division by zero"),
        (lambda count: np.zeros(0), r"Wrong\.ahead\(\d\) told array\(.*; it must be \d numbers in \[0, 1\), float64"),
        (lambda count: np.ones(count), "it must be"),
        (lambda count: np.full(count, np.nan), "it must be"),
    ],
)
def test_choices_that_tell_no_numbers_end_their_own_text(ahead: Any, said: str) -> None:
    class Wrong(Told):
        def ahead(self, count: int) -> FloatArray:
            numbers: FloatArray = ahead(count)
            return numbers

    decoder = decoder_of(model())
    good, bad = requests(decoder, {"temperature": 0.7}, {"temperature": 0.7})
    expected = decoder.run_all([good])[0].token_ids
    sequences = [decoder.engine.submit(good), decoder.engine.submit(bad, Wrong([]))]
    finished(decoder, sequences)
    assert sequences[0].token_ids == expected
    assert sequences[0].error is None
    assert re.search(said, str(sequences[1].error))


def test_a_text_that_is_cancelled_leaves_the_others_as_they_are() -> None:
    decoder = decoder_of(model())
    asked = requests(decoder, *[{"temperature": 0.8}] * 3)
    expected = [one.token_ids for one in decoder.run_all(asked)]
    sequences = [decoder.engine.submit(attrs.evolve(one)) for one in asked]
    for _ in range(3):
        decoder.engine.step()
    decoder.engine.cancel(sequences[1])
    decoder.engine.step()
    late = decoder.engine.submit(attrs.evolve(asked[1]))
    finished(decoder, [sequences[0], sequences[2], late])
    assert [sequences[0].token_ids, late.token_ids, sequences[2].token_ids] == expected
    assert sequences[1].token_ids == expected[1][: len(sequences[1].token_ids)]


def test_rules_that_do_more_than_follow_the_target_are_asked() -> None:
    class Shy(Match):
        """Draws as `match` does, and goes nowhere."""

        follows_argmax = False

        def walk(self, tree: TokenTree, laws: Any, choices: Choices) -> Accepted:
            return Accepted(np.array([0]), laws.draw(0, choices))

    decoder = decoder_of(model(), rule=Shy())
    (asked,) = requests(decoder, {"temperature": 0.7})
    (result,) = decoder.run_all([asked])
    assert all(len(one.path) == one.laws_on_host == 1 for one in result.rounds)
    assert {one.on_host for one in result.rounds} == {
        f"rule 'match' ({__name__}.{Shy.__qualname__}) does more than follow the target's tokens and test drawn ones"
    }
    assert result.token_ids == decoder_of(model()).run_all([asked])[0].token_ids


def test_what_is_said_of_a_walk_is_not_inherited_with_another() -> None:
    class Own:
        def walk(self, tree: TokenTree, laws: Any, choices: Choices) -> Accepted:
            raise NotImplementedError

    class Renamed(RecursiveRejection):
        name = "renamed"

    class Logged(Renamed):
        def walk(self, tree: TokenTree, laws: Any, choices: Choices) -> Accepted:
            return super().walk(tree, laws, choices)

    class Says(Logged):
        tests = "leaves-first"

    class Mixed(Own, Match):
        pass

    class MixedAndSays(Mixed):
        follows_argmax = True

    assert [rule.tests for rule in (RecursiveRejection, Renamed, Logged, Says)] == [
        *("in-turn", "in-turn"),
        *(None, "leaves-first"),
    ]
    said = [(rule.follows_argmax, rule.follows_target) for rule in (Match, Mixed, MixedAndSays)]
    assert said == [(True, True), (False, False), (True, False)]


class OnDevice(TableTarget):
    """Says that it takes tokens by itself."""

    can_walk = can_draw = True


class Timid(Match):
    """Says that it may stop before the tree does."""

    follows_argmax = False


def acceptor_of(
    rule: AcceptanceRule, sampling: Sampling, choices: Choices, target: Target | None = None
) -> tuple[Acceptor, Offered]:
    """Who accepts the tokens of a request, and what is offered of its tree, in slot 2."""
    request, offered = attrs.evolve(REQUEST, sampling=sampling), Offered()
    acceptor = Acceptors(rule, target or OnDevice(np.zeros((1, 1)))).of(request, choices)
    acceptor.offer(2, TREE, offered)
    return acceptor, offered


TREE = TokenTree([0, 1, 2, 3], [-1, 0, 0, 1], np.zeros(4))
REQUEST = Request(np.array([0]), 5, Sampling(True), frozenset({7}))


def test_a_node_is_drawn_for_with_the_number_of_its_depth() -> None:
    choices = SeededChoices(4)
    offered = Offered()
    Acceptors(Match(), OnDevice(np.zeros((1, 1)))).of(REQUEST, choices).offer(2, TREE, offered)
    assert (offered.greedy, [*offered.drawn]) == ({}, [2])
    found = offered.drawn[2]
    assert found.numbers is not None
    assert found.numbers.tolist() == SeededChoices(4).ahead(3)[[0, 1, 1, 2]].tolist()
    assert (found.warpers, found.ends) == ((), {7})
    assert choices.pick(np.full(10, 0.1)) == SeededChoices(4).pick(np.full(10, 0.1))  # nothing was used


def test_a_tree_is_tested_with_as_many_numbers_as_any_walk_needs() -> None:
    drawn = {0: Drawn([1, 2], np.full(4, 0.25)), 1: Drawn([3], np.full(4, 0.25))}
    tree = TokenTree([0, 1, 2, 3], [-1, 0, 0, 1], np.zeros(4), drawn)
    for rule, count in ((RejectionWithoutReplacement(), 3 + 2 + 1), (Traversal(), 4 + 1)):
        choices, offered = SeededChoices(4), Offered()
        acceptor = Acceptors(rule, OnDevice(np.zeros((1, 1)))).of(REQUEST, choices)
        acceptor.offer(2, tree, offered)
        found = offered.drawn[2]
        assert found.tests is not None
        assert (found.tests.order, found.tests.tree, found.ends) == (rule.tests, tree, {7})
        assert found.numbers is not None
        assert found.numbers.tolist() == SeededChoices(4).ahead(count).tolist()
        acceptor.used(Accepted(np.array([0]), 1, numbers=2))
        assert choices.ahead(1) == SeededChoices(4).ahead(3)[2:]


@pytest.mark.parametrize(
    ("rule", "sampling", "choices", "why"),
    [
        (Typical(), Sampling(True), SeededChoices(0), "rule 'typical' .* does more than follow"),
        (RecursiveRejection(), Sampling(True), ScriptedChoices([]), "ScriptedChoices will draw with is not known"),
        (Match(), Sampling(True), ScriptedChoices([]), "ScriptedChoices will draw with is not known"),
        (Match(), Sampling(True, (lambda _ids, scores: scores,)), SeededChoices(0), "'<lambda>' may look at more"),
        (Timid(), Sampling(False), SeededChoices(0), "rule 'match' .* does more than follow"),
    ],
)
def test_why_a_rule_is_asked(rule: AcceptanceRule, sampling: Sampling, choices: Choices, why: str) -> None:
    acceptor, offered = acceptor_of(rule, sampling, choices)
    assert (offered.greedy, offered.drawn) == ({}, {})
    assert acceptor.on_host is not None
    assert re.search(why, acceptor.on_host)
    nothing, offered = acceptor_of(rule, sampling, choices, TableTarget(np.zeros((1, 1))))
    assert (offered.greedy, offered.drawn, nothing.on_host) == ({}, {}, None)  # where no target draws it is no news


@pytest.mark.parametrize(
    ("rule", "choices"), [(RecursiveRejection(), SeededChoices(0)), (Match(), ScriptedChoices([]))]
)
def test_the_most_likely_tokens_are_a_targets_to_take(rule: AcceptanceRule, choices: Choices) -> None:
    acceptor, offered = acceptor_of(rule, Sampling(False), choices)
    assert (offered.greedy, offered.drawn, acceptor.on_host) == ({2: {7}}, {}, NOT_WALKED)
    suppressed = SuppressTokensLogitsProcessor([3], "cpu")
    acceptor, offered = acceptor_of(rule, Sampling(False, (suppressed,)), choices)
    assert (offered.greedy, acceptor.on_host) == ({}, NOT_WALKED)
    assert (offered.drawn[2].warpers, offered.drawn[2].numbers) == ((suppressed,), None)


@pytest.mark.parametrize(
    ("rule", "sampling", "any_tree"),
    [
        (Match(), Sampling(True), True),
        (Match(), Sampling(False), True),
        (RecursiveRejection(), Sampling(True), False),
        (RecursiveRejection(), Sampling(False), True),
        (Typical(), Sampling(False), False),  # it is lossy
        (Timid(), Sampling(False), True),  # each token is still the target's
    ],
)
def test_whether_any_tree_gives_the_same_text_hangs_on_no_target(
    rule: AcceptanceRule, sampling: Sampling, any_tree: bool
) -> None:
    for target in (OnDevice(np.zeros((1, 1))), TableTarget(np.zeros((1, 1)))):
        assert acceptor_of(rule, sampling, SeededChoices(0), target)[0].any_tree == any_tree


def test_what_a_rule_and_a_target_say_of_themselves_is_asked_when_the_engine_is_made() -> None:
    read: list[str] = []

    class Watched(TableTarget):
        def __getattribute__(self, name: str) -> Any:
            read.extend([name] * (name in ("can_walk", "can_draw")))
            return super().__getattribute__(name)

    class WatchedMatch(Match):
        def __getattribute__(self, name: str) -> Any:
            read.extend([name] * (name in ("follows_argmax", "follows_target", "lossy", "looks_ahead", "tests")))
            return super().__getattribute__(name)

    engine = Engine(Watched(np.eye(8)), WatchedMatch())
    assert {*read} == {"can_walk", "can_draw", "follows_argmax", "follows_target", "lossy", "looks_ahead", "tests"}
    read.clear()
    sequences = [engine.submit(attrs.evolve(REQUEST, sampling=Sampling(drawn))) for drawn in (True, False)]
    while not all(one.finished for one in sequences):
        engine.step()
    assert read == []
