"""The drafter of several: its law by the formula, what it asks whom, and that it keeps the contract in any company."""

from typing import Any

import attrs
import numpy as np
import pytest
import torch

from talon_core import (
    Candidates,
    Drafter,
    Engine,
    Frontier,
    Part,
    PluginError,
    Proposed,
    Request,
    Retriever,
    TableTarget,
    TokenTree,
)
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.drafter import Committed
from talon_core.hf.target import HFTarget
from talon_core.plugins.parts import Parts, resolve
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build, spelled
from talon_core.testing import check_drafter
from talon_drafters import HybridSpec, Ngram
from talon_drafters.hybrid.calibration import Trust
from talon_drafters.hybrid.drafter import HybridDrafter, Model
from talon_drafters.hybrid.part_target import Columns, PartTarget
from talon_strategies import Bandit, Chain, Match, Talon
from talon_tests.prices import Prices
from talon_tests.random_drafters import TRAINED, drafter_specs, random_target
from talon_tests.tiny_models import tiny_model

VOCAB = 12
REGISTRY = load_registry()
LAW = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625, *[0.0] * (VOCAB - 5)])


class Fixed(Drafter):
    """A model with one law for all nodes; it notes what it is asked and told."""

    def __init__(self, law: Any = LAW, max_depth: int | None = None, laws: bool = True) -> None:
        self.law, self.max_depth, self.laws = np.array(law), max_depth, laws
        self.asked: list[list[int]] = []
        self.told: list[Any] = []

    def open(self, slot: int, prompt: Any, room: int) -> None:
        self.told.append(prompt.tolist())

    def read(self, parts: Any) -> None:
        self.told.append({slot: (part.start, part.count) for slot, part in parts.items()})

    def commit(self, committed: Any) -> None:
        self.told += [one.tokens.tolist() for one in committed.values()]

    def propose(self, frontiers: Any) -> Proposed:
        self.asked += [one.nodes.tolist() for one in frontiers]
        with np.errstate(divide="ignore"):
            found = [
                Candidates.from_logits(one.tree, one.nodes, np.log([self.law] * len(one.nodes)), one.width)
                for one in frontiers
            ]
        return Proposed(found if self.laws else [one.detached() for one in found], 1)


def hybrid(*models: Fixed, options: Any = None, ngrams: int = 1) -> HybridDrafter:
    target = TableTarget(np.zeros((VOCAB, VOCAB)))
    looking: Any = [("ngram", Ngram(least=0).open(target)) for _ in range(ngrams)]
    return HybridDrafter(
        options or HybridSpec("ngram", heard=0.0, sure=0.9),
        [Model(Ngram(), one, Columns(())) for one in models],
        looking,
        VOCAB,
    )


def opened(text: list[int], *models: Fixed, **how: Any) -> HybridDrafter:
    drafter = hybrid(*models, **how)
    drafter.open(0, np.array(text), 100)
    return drafter


def ask(drafter: Drafter, tree: TokenTree, nodes: Any = (0,), width: int = VOCAB) -> tuple[Candidates, int]:
    answer = drafter.propose([Frontier(0, tree, np.array(nodes, dtype=np.int64), width)])
    return answer.candidates[0], answer.draft_passes


def sigmoid(x: float) -> float:
    return float(1 / (1 + np.exp(-x)))


def logit(p: float) -> float:
    return float(np.log(p / (1 - p)))


def shares_after(text: list[int]) -> dict[int, float]:
    """What `ngram` has seen after a text: its law without what is spread evenly."""
    drafter = Ngram(least=0).open(TableTarget(np.zeros((VOCAB, VOCAB))))
    drafter.open(0, np.array(text), 100)
    law = ask(drafter, TokenTree.root(text[-1]))[0].law(0)
    return {token: law[token] - law.min() for token in range(VOCAB) if law[token] > law.min() + 1e-9}


def learnt_after(text: list[int]) -> tuple[float, float]:
    """`s` and the slope 1.2 + `u` of the docstring of `HybridSpec`, by looking at every token of a text."""
    shift = turn = 0.0
    for end in range(1, len(text)):
        shares = shares_after(text[:end])
        if shares:
            best = max(shares, key=shares.__getitem__)
            odds = logit(shares[best])
            wrong = (best == text[end]) - sigmoid((1.2 + turn) * odds - 0.1 + shift)
            shift, turn = 0.95 * shift + 0.2 * wrong, 0.95 * turn + 0.05 * wrong * odds
    return shift, 1.2 + turn


LONG = [6, 7, 8, 9, 10, 11, 5, 6, 7, 8, 9, 10]
"""11 comes next, by a match of five tokens."""

LUCKY = [6, 7, 8, 9, 10, 11, 5, 7, 6]
"""7 comes next, by a match of one token."""


@pytest.mark.parametrize("text", [LONG, LUCKY], ids=["long", "lucky"])
def test_the_law_is_the_formula_s(text: list[int]) -> None:
    shares, (shift, slope) = shares_after(text), learnt_after(text)
    weight = sigmoid(slope * logit(max(shares.values())) - 1.1 - 0.55 * logit(LAW.max()) + shift)
    expected = (1 - weight) * LAW
    for token, share in shares.items():
        expected[token] += weight * share / sum(shares.values())
    options = HybridSpec("ngram", heard=0.0, sure=1.0)
    candidates, passes = ask(opened(text, Fixed(), options=options), TokenTree.root(text[-1]))
    np.testing.assert_allclose(candidates.law(0), expected, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(np.exp(candidates.logp[0]), np.sort(expected[expected > 0])[::-1], rtol=1e-6)
    assert passes == 1


def test_where_no_model_says_anything_the_best_token_has_what_it_is_trusted() -> None:
    shares, (shift, slope) = shares_after(LONG), learnt_after(LONG)
    candidates, passes = ask(opened(LONG), TokenTree.root(10))
    best = sigmoid(slope * logit(shares[11]) - 0.1 + shift)
    rest = 1 - best * sum(shares.values()) / shares[11]
    assert candidates.tokens.tolist() == [[11]]
    assert np.exp(candidates.logp[0, 0]) == pytest.approx(best + rest / VOCAB, rel=1e-6)
    assert (passes, candidates.law(0).sum()) == (0, pytest.approx(1))


def test_a_long_match_outweighs_a_model_and_a_lucky_one_does_not() -> None:
    always = HybridSpec("ngram", sure=1.0)
    for text, best in (LONG, 11), (LUCKY, 0):
        candidates, _ = ask(opened(text, Fixed(), options=always), TokenTree.root(text[-1]))
        assert candidates.tokens[0, 0] == best


def test_trust_by_hand() -> None:
    trust = Trust()
    assert trust.comes(0.5) == pytest.approx(sigmoid(-0.1))
    assert trust.beside({3: 0.8, 4: 0.1}, 0.5) == pytest.approx(sigmoid(1.2 * np.log(4) - 1.1))
    assert trust.alone({3: 0.5, 4: 0.25}) == pytest.approx(1.5 * sigmoid(-0.1))
    trust.learn(0.5, True)
    assert trust.shift == pytest.approx(0.2 * (1 - sigmoid(-0.1)))
    assert trust.turn == 0.0  # log-odds of 0 say nothing of a slope
    before = trust.shift
    trust.learn(0.8, False)
    comes = sigmoid(1.2 * np.log(4) - 0.1 + before)
    assert trust.shift == pytest.approx(0.95 * before - 0.2 * comes)
    assert trust.turn == pytest.approx(-0.05 * comes * np.log(4))
    slope = 1.2 + trust.turn
    assert trust.comes(0.8) == pytest.approx(sigmoid(slope * np.log(4) - 0.1 + trust.shift))
    assert trust.beside({3: 0.8}, 0.5) == pytest.approx(sigmoid(slope * np.log(4) - 1.1 + trust.shift))


@pytest.mark.parametrize("share", [0.3, 0.9, 0.99, 1.0])
def test_a_look_up_that_is_ever_wrong_is_not_trusted_however_sure_it_is(share: float) -> None:
    trust = Trust()
    for _ in range(20):
        trust.learn(share, False)
    assert trust.comes(share) < 0.4
    for _ in range(60):
        trust.learn(share, True)
    assert trust.comes(share) > 0.6


def test_a_text_whose_matches_mislead_is_trusted_less() -> None:
    misled = opened([1, 2, 1, 3, 1, 4, 1, 5, 1, 6, 1], Fixed())
    repeats = opened([1, 2, 3] * 4, Fixed())
    assert misled._texts[0].trust[0].shift < 0 < repeats._texts[0].trust[0].shift


@pytest.mark.parametrize("part", ["pld", "pld[shortest=1]", "lookahead[window=0]"])
def test_a_look_up_of_any_kind_is_one_and_misleads_no_longer_than_it_is_right(part: str) -> None:
    spec = HybridSpec(f"{part}+ngram")
    misled, right = (spec.open(TableTarget(np.zeros((VOCAB, VOCAB)))) for _ in range(2))
    for drafter in (misled, right):
        assert not drafter._models
        assert drafter.sources == [part.partition("[")[0], "ngram"]
    misled.open(0, np.array([1, 2, 1, 3, 1, 4, 1, 5, 1, 6, 1, 7, 1]), 100)
    assert ask(misled, TokenTree.root(1))[0].law(0).max() < spec.sure
    right.open(0, np.array([*REPEATED, 3, 4, 5]), 100)
    candidates, passes = ask(right, TokenTree.root(5))
    assert (candidates.tokens[0, 0], passes) == (6, 0)
    assert candidates.law(0).max() > spec.sure


@pytest.mark.parametrize("sets", [0.0, 0.09, 0.11, 1.0])
def test_look_ups_that_are_trusted_little_at_the_root_take_no_part_in_a_tree(sets: float) -> None:
    """That of `LUCKY` would be given 0.1 of the law beside a model that is as sure as not."""
    model, options = Fixed(), HybridSpec("ngram", heard=sets, sure=1.0)
    drafter, tree = opened(LUCKY, model, options=options), TokenTree.root(LUCKY[-1])
    shares, (shift, slope) = shares_after(LUCKY), learnt_after(LUCKY)
    assert sigmoid(slope * logit(max(shares.values())) - 1.1 + shift) == pytest.approx(0.1, abs=0.01)
    candidates, passes = ask(drafter, tree)
    heard = sets < 0.1
    assert passes == 1
    alone = ask(Fixed(), tree)[0]
    assert np.array_equal(candidates.law(0), alone.law(0)) == (not heard)
    assert (candidates == alone) == (not heard)
    below = tree.extend(np.array([7, 8]), np.array([0, 1]), np.array([-1.0, -2.0]))
    again = ask(drafter, below, [1, 2])[0]
    assert (again == ask(Fixed(), below, [1, 2])[0]) == (not heard)
    drafter.commit({0: Committed(np.array(LONG), np.array([0]))})
    assert ask(drafter, TokenTree.root(LONG[-1]))[0].law(0)[11] > 0.4 or sets == 1.0  # the next tree begins anew


def test_a_certain_look_up_stays_finite() -> None:
    candidates, _ = ask(opened([7] * 60, Fixed()), TokenTree.root(7))
    assert np.isfinite(candidates.logp).all()
    assert candidates.law(0).sum() == pytest.approx(1)


REPEATED = [*range(3, 12), *range(3, 12), *range(3, 12)]


def test_a_long_match_is_drafted_as_a_chain_without_a_model_s_pass() -> None:
    model = Fixed()
    drafter, tree = opened([*REPEATED, 3, 4, 5], model), TokenTree.root(5)
    for node, token in enumerate((6, 7, 8, 9)):
        candidates, passes = ask(drafter, tree, [node])
        assert (candidates.tokens[0, 0], passes) == (token, 0)
        tree = tree.extend(candidates.tokens[0, :1], np.array([node]), candidates.path_logp[0, :1])
    assert not model.asked


def test_models_are_asked_where_no_look_up_is_sure_and_nowhere_below_where_one_was() -> None:
    model = Fixed()
    drafter = opened([*REPEATED, 0, 2, 3, 4, 5, 1], model)
    tree = TokenTree.root(1)
    assert ask(drafter, tree)[1] == 1
    tree = tree.extend(np.array([3, 0]), np.array([0, 0]), np.array([-1.0, -1.0]))
    assert ask(drafter, tree, [1, 2])[1] == 1
    chain = tree.extend(np.array([4, 5, 6, 7, 8, 9, 0]), np.array([1, 3, 4, 5, 6, 7, 8]), np.full(7, -1.0))
    for node in range(3, 10):
        ask(drafter, chain, [node])
    sure = [nodes for nodes in model.asked if nodes[0] >= 3]
    assert model.asked[:2] == [[0], [1, 2]]
    assert len(sure) < 7
    assert [9] not in model.asked  # its parent's match was sure; the model has nothing to go on from
    fresh = TokenTree.root(1)
    assert ask(drafter, fresh)[1] == 1  # and the next tree begins anew


def test_a_model_is_asked_no_deeper_than_it_can_draft() -> None:
    shallow, deep = Fixed(max_depth=1), Fixed(LAW[::-1])
    drafter = opened([1], shallow, deep)
    assert drafter.max_depth is None
    assert hybrid(Fixed(max_depth=2), Fixed(max_depth=3), ngrams=0).max_depth == 3
    tree = TokenTree.root(1).extend(np.array([2]), np.array([0]), np.array([-1.0]))
    both, passes = ask(drafter, TokenTree.root(1))
    assert passes == 2
    np.testing.assert_allclose(both.law(0), (LAW + LAW[::-1]) / 2)
    one, passes = ask(drafter, tree, [1])
    assert passes == 1
    np.testing.assert_allclose(one.law(0), LAW[::-1])
    assert (shallow.asked, deep.asked) == ([[0]], [[0], [1]])


def test_the_mean_of_models_is_offered_in_order_however_few_are_wanted() -> None:
    drafter = opened(LUCKY, Fixed(), Fixed(LAW[::-1] ** 2 / (LAW**2).sum()))
    whole = ask(drafter, TokenTree.root(6))[0]
    for width in range(1, VOCAB):
        few = ask(drafter, TokenTree.root(6), width=width)[0]
        np.testing.assert_allclose(few.logp[0], whole.logp[0, :width])


def test_what_a_model_without_laws_does_not_offer_has_no_share_of_it() -> None:
    drafter = opened(LONG, Fixed(laws=False), options=HybridSpec("ngram", sure=1.0))
    with_law = opened(LONG, Fixed(), options=HybridSpec("ngram", sure=1.0))
    mine, right = (ask(one, TokenTree.root(10))[0] for one in (drafter, with_law))
    assert mine.tokens[0].tolist() == right.tokens[0].tolist()
    np.testing.assert_allclose(mine.logp, right.logp)
    with pytest.raises(ValueError, match="no full law"):
        mine.law(0)


def test_without_look_ups_it_is_the_model() -> None:
    candidates, passes = ask(opened([1, 2, 1], Fixed(), ngrams=0), TokenTree.root(1), width=3)
    np.testing.assert_allclose(np.exp(candidates.logp[0]), LAW[:3])
    assert (candidates.tokens[0].tolist(), passes) == ([0, 1, 2], 1)


def ask_alone(drafter: Drafter, source: int, tree: TokenTree) -> tuple[Candidates, int]:
    answer = drafter.propose([Frontier(0, tree, np.array([0]), VOCAB, source)])
    return answer.candidates[0], answer.draft_passes


def test_each_source_alone_says_what_it_says_without_the_other() -> None:
    model = Fixed()
    drafter, looking = opened(LONG, model), opened(LONG)
    assert [*drafter.sources] == ["ngram", "ngram"]  # the model's options are somebody's
    root = TokenTree.root(10)
    candidates, passes = ask_alone(drafter, 0, root)
    np.testing.assert_allclose(candidates.law(0), LAW)
    assert (passes, model.asked) == (1, [[0]])
    candidates, passes = ask_alone(drafter, 1, root)
    expected, _ = ask(looking, root)
    np.testing.assert_array_equal(candidates.law(0), expected.law(0))
    assert candidates.tokens.tolist() == expected.tokens.tolist()
    assert (passes, model.asked) == (0, [[0]])  # where no look-up is sure, too
    candidates, passes = ask_alone(opened([1, 2, 3], model), 1, TokenTree.root(3))
    assert (candidates.tokens.max(), passes, model.asked) == (-1, 0, [[0]])


def test_sequences_ask_different_sources_in_one_call() -> None:
    model = Fixed()
    drafter = hybrid(model)
    for slot in range(3):
        drafter.open(slot, np.array(LONG), 100)
    tree = TokenTree.root(10)
    answer = drafter.propose(
        [Frontier(slot, tree, np.array([0]), VOCAB, source) for slot, source in enumerate((1, 0, 1))]
    )
    assert model.asked == [[0]]
    assert answer.candidates[0].tokens.tolist() == answer.candidates[2].tokens.tolist() == [[11]]
    np.testing.assert_allclose(answer.candidates[1].law(0), LAW)


class ModelsTakeTime(Prices):
    """A layer with a model takes half a pass of the target, and one of a look-up nothing."""

    def of_source(self, source: int | None) -> Prices:
        return Prices(node=self.node, layer=0.0) if source == 1 else self


CYCLE = np.full((VOCAB, VOCAB), -9.0)
CYCLE[np.arange(10), (np.arange(10) + 1) % 10] = 9.0


@pytest.mark.parametrize("prompt", [[*range(10), *range(6)], [11, 3]], ids=["known", "new"])
def test_a_model_that_brings_nothing_is_asked_in_few_rounds_and_hears_of_all(prompt: list[int]) -> None:
    """The text goes round in a circle, in the prompt already or not; the model says one token, whatever comes."""
    model = Fixed([0.0] * 7 + [1.0] + [0.0] * 4)
    drafter = hybrid(model, options=HybridSpec("ngram", sure=1.0))
    policy, costs = Bandit("chain[length=2]", drafters=True), ModelsTakeTime(node=0.05, layer=0.5)
    engine = Engine(TableTarget(CYCLE), Match(), policy, drafter, costs=costs)
    sequence = engine.submit(Request(np.array(prompt), max_new_tokens=200))
    while not sequence.finished:
        engine.step()
    assert len(model.asked) / 2 <= 0.2 * len(sequence.rounds)
    told = [token for tokens in model.told[2:] for token in tokens]
    assert told == sequence.token_ids[: len(told)]
    assert len(told) > 190


def test_everybody_is_told_what_was_committed_whoever_drafted_it() -> None:
    model = Fixed()
    drafter = opened([*REPEATED, 3], model)
    drafter.read({0: Part(0, len(REPEATED))})
    ask(drafter, TokenTree.root(3))
    drafter.commit({0: Committed(np.array([4, 5, 1]), np.array([0, 1, 2]))})
    assert model.told == [[*REPEATED, 3], {0: (0, len(REPEATED))}, [4, 5, 1]]
    again = opened([*REPEATED, 3, 4, 5, 1])
    assert ask(drafter, TokenTree.root(1))[0].law(0)[2] != ask(again, TokenTree.root(1))[0].law(0)[2]
    assert drafter._texts[0].trust[0].shift == again._texts[0].trust[0].shift


def test_time_to_spare_is_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    models, waits = [Fixed(), Fixed()], [1, 2]
    drafter = hybrid(*models)

    def reads(place: int) -> bool:
        waits[place] -= 1
        return waits[place] >= 0

    for place, model in enumerate(models):
        monkeypatch.setattr(model, "catch_up", lambda place=place: reads(place), raising=False)
    assert [drafter.catch_up() for _ in range(4)] == [True, True, True, False]
    assert HybridSpec(of="ngram+draft-model[skip=1]").catches_up
    assert not HybridSpec(of="ngram").catches_up


def test_parts_that_take_over_more_are_not_told_it_again() -> None:
    class Keeps(Fixed):
        def resume(self, slot: int, prompt: Any, room: int, source: int, length: int) -> int:
            return length - 1

    keeps, forgets = Keeps(), Fixed()
    drafter = hybrid(keeps, forgets)
    drafter.open(0, np.array([1, 2, 3, 4, 5]), 20)
    assert drafter.resume(1, np.array([1, 2, 3, 9, 8, 7]), 20, 0, 3) == 0
    keeps.told.clear(), forgets.told.clear()
    for start, count in (0, 2), (2, 3):
        drafter.read({1: Part(start, count, torch.zeros(count, 0))})
    assert forgets.told == [{1: (0, 2)}, {1: (2, 3)}]
    assert keeps.told == [{1: (2, 3)}]


@pytest.fixture(scope="module")
def model() -> Any:
    return random_target()


@pytest.fixture(scope="module")
def heads(model: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By name, how a part with random weights is written."""
    specs = drafter_specs(model, tmp_path_factory.mktemp("heads"))
    return {name: f"{spec.replace(':', '[', 1).replace(',', ';')}]" for name, spec in specs.items() if ":" in spec}


@pytest.mark.parametrize(
    ("parts", "sure"),
    [
        (("draft-model:skip=1", "ngram"), 0.5),
        (("medusa", "eagle3", "ngram"), 0.6),
        (("ngram", [*TRAINED][-1], "ngram[max_match=2;least=0]"), 0.5),
        (("ngram",), 1.0),
        (("eagle3", "pld", "datastore", "lookahead[window=0]"), 0.6),
    ],
    ids=str,
)
def test_it_keeps_the_contract_in_any_company(
    model: Any, heads: dict[str, str], parts: tuple[str, ...], sure: float
) -> None:
    of = "+".join(heads.get(part, part) if part != "ngram" else part for part in parts)
    drafter: HybridSpec = build(REGISTRY, "drafter", f"hybrid:of={of},sure={sure}")
    attention = REGISTRY.get("attention backend", "sdpa").cls()
    check_drafter(drafter, HFTarget(model, attention, features=drafter.features(3)), max_examples=3)


def test_a_part_sees_the_hidden_states_that_it_asked_for(model: Any) -> None:
    attention = REGISTRY.get("attention backend", "sdpa").cls()
    whole, own = (HFTarget(model, attention, features=states) for states in ((0, 1, -1), (-1, 0)))
    part = PartTarget(whole, (-1, 0), Columns.of((-1, 0), (0, 1, -1)))
    ids, tree = np.array([0, 1, 2]), TokenTree([2, 0, 1], [-1, 0, 0], [0.0, -1.0, -1.0])
    found = []
    for target in part, own:
        with target.session():
            target.open(0, 20)
            assert target.resume(0, 20, 0, 0) == 0
            read = target.read({0: ids})[0]
            outputs = target.verify({0: tree}).outputs[0]
            target.commit({0: np.array([0])})
            target.close(0)
        assert read is not None
        assert outputs.features is not None
        found.append((read, outputs.features, outputs.logits))
    for mine, right in zip(*found, strict=True):
        torch.testing.assert_close(mine, right)
    assert part.states == own.states
    assert (part.vocab_size, part.device, part.occupied) == (whole.vocab_size, whole.device, whole.occupied)


def test_features_are_what_any_part_asks_for(heads: dict[str, str]) -> None:
    both = HybridSpec(f"{heads['eagle3']}+ngram+{heads['medusa']}")
    eagle3, _, medusa = both.parts
    assert set(both.features(3)) == {*eagle3.features(3), *medusa.features(3)}
    assert len(set(both.features(3))) == len(both.features(3))
    assert Columns.of((4, 2), (2, 3, 4)).features(torch.arange(6.0)[None]).tolist() == [[4.0, 5.0, 0.0, 1.0]]  # type: ignore[union-attr]
    assert Columns(()).features(torch.zeros(1, 6)) is None


def test_it_reads_texts_alone_if_all_parts_do() -> None:
    assert HybridSpec("ngram").reads_texts
    assert not HybridSpec("ngram+draft-model[skip=1]").reads_texts
    assert not HybridSpec().reads_texts


def test_auto_is_the_drafter_that_would_be_chosen_for_the_model() -> None:
    waiting = resolve(Parts("hybrid"), REGISTRY)
    chosen = waiting.for_model(tiny_model("llama"))
    assert chosen.drafter == HybridSpec("ngram")  # no head is ready for it, and the look-up stands there already
    assert chosen.for_model(tiny_model("llama")) is chosen
    assert HybridSpec("auto").for_model(tiny_model("llama")) == HybridSpec("ngram")
    with pytest.raises(ValueError, match="what 'auto' stands for depends on the model"):
        HybridSpec().features(3)


def test_its_spec_is_written_as_it_is_read() -> None:
    written = "hybrid:of=eagle3[layers=1+2;layer_ids_are=block]+ngram[max_match=8],sure=0.5"
    made: HybridSpec = build(REGISTRY, "drafter", written)
    assert spelled(made) == written
    assert made.parts[1] == Ngram(max_match=8)
    assert made.parts[0].layers == (1, 2)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("of", "says"),
    [
        ("", "of is ''; it must be different drafters joined by"),
        ("ngram+", "it must be different drafters"),
        ("ngram+ngram", "it must be different drafters"),
        ("ngram[max_match=8", "it must be different drafters"),
        ("ngarm", "no drafter 'ngarm'; did you mean 'ngram'"),
        ("ngram[depth=3]", "drafter 'ngram' has no option 'depth'"),
        ("ngram[max_match=0]", "max_match"),
    ],
)
def test_what_cannot_be_read_is_refused(of: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("[", r"\[")):
        build(REGISTRY, "drafter", f"hybrid:of={of}")


@pytest.mark.parametrize("options", [{"sure": 0.0}, {"sure": 1.1}, {"least": -0.1}, {"least": 2.0}], ids=str)
def test_senseless_options_are_refused_by_name(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        HybridSpec("ngram", **options)  # type: ignore[arg-type]


def test_a_repeated_text_is_decoded_without_draft_passes() -> None:
    """Logits that repeat one cycle for ever: the look-up is soon sure, and the model is left in peace."""
    logits = np.full((VOCAB, VOCAB), -5.0)
    for token in range(VOCAB):
        logits[token, (token + 1) % VOCAB] = 5.0
    target, model = TableTarget(logits), Fixed()
    drafter = hybrid(model)
    request = Request(np.array([0]), 120)
    (result,) = Decoder(target, Match(), Talon(budget=12), drafter).run_all([request])
    assert result.token_ids == [(place + 1) % VOCAB for place in range(120)]
    (alone,) = Decoder(target, Match(), Talon(budget=12), Fixed()).run_all([request])
    assert result.stats.target_passes < alone.stats.target_passes / 3
    assert result.stats.draft_passes < alone.stats.draft_passes / 3


def test_describe_says_whose_files_are_what(model: Any, heads: dict[str, str]) -> None:
    decoder = decoder_for_model(model, None, Parts(f"hybrid:of={heads['eagle3']}+ngram", Chain(length=2)))
    assert decoder.drafter is not None
    said = decoder.drafter.describe()
    assert said
    assert all(name.startswith("eagle3: ") for name in said)


def test_options_are_chosen_for_the_model_before_it_is_asked_for_features() -> None:
    @attrs.frozen
    class Choosing(Ngram):
        chosen: bool = False

        def for_model(self, model: Any) -> "Choosing":
            return attrs.evolve(self, chosen=True)

        def features(self, num_layers: int) -> tuple[int, ...]:
            assert self.chosen
            return ()

    decoder = decoder_for_model(tiny_model("llama"), None, Parts(Choosing(), Chain(length=2)))
    assert decoder.drafter_spec == Choosing(chosen=True)


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (None, PluginError, "returned None from for_model; it must return a DrafterSpec"),
        (KeyError("x"), PluginError, "raised KeyError in for_model"),
        (ValueError("no head fits"), ValueError, "no head fits"),
    ],
    ids=str,
)
def test_options_that_fail_at_a_model_are_named(answer: Any, error: type[Exception], says: str) -> None:
    @attrs.frozen
    class Failing(Ngram):
        def for_model(self, model: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    with pytest.raises(error, match=says):
        resolve(Parts(Failing(), "chain"), REGISTRY).for_model(None)


def test_a_plugin_s_look_up_is_one() -> None:
    class Always(Retriever):
        def open(self, slot: int, prompt: Any, room: int) -> None:
            pass

        def commit(self, committed: Any) -> None:
            pass

        def propose(self, frontiers: Any) -> Proposed:
            return Proposed([Candidates.unknown(one.nodes) for one in frontiers])

        def look_up(self, frontier: Frontier) -> Any:
            return [{3: 0.5} for _ in frontier.nodes]

    drafter = HybridDrafter(HybridSpec("ngram", least=0), [], [("always", Always())], VOCAB)
    drafter.open(0, np.array([3, 3, 3]), 10)
    candidates, passes = ask(drafter, TokenTree.root(3))
    assert (candidates.tokens[0, 0], passes) == (3, 0)
    assert drafter._texts[0].trust[0].shift > 0
