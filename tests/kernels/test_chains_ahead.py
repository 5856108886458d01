"""Rounds whose trees are chains, run ahead: the bits of rounds run one by one, whatever a policy says or does."""

import ctypes
import json
import math
from functools import cache

import attrs
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from talon_core.chains import Account, Chains
from talon_core.costs import MeasuredCosts
from talon_core.decoding.loading import decoder_for_model
from talon_core.drafter import Ahead, AheadDraws, RanOn
from talon_core.drawn import sharpened
from talon_core.errors import PluginError
from talon_core.plugins.parts import Parts
from talon_core.policy import Growth, TreePolicy
from talon_core.profiles.measure import CHAINS, Measuring, ProfilePlan
from talon_core.request import Request
from talon_core.runtime import chain_rounds
from talon_core.runtime.chain_rounds import ChainRounds
from talon_core.sampling import temperature_sampling
from talon_core.source_chooser import SourceChooser
from talon_core.tree import TokenTree
from talon_drafters.eagle.network import EagleHead
from talon_drafters.heads.feature_drafter import FeatureDrafter
from talon_kernels.native import load
from talon_kernels.recorded.chains import MOST_DRAFTED, PassFields, RoundsFields
from talon_kernels.recorded.recorder import NativeRecorder
from talon_strategies import Chain
from talon_tests.shared_targets import SharedTargets
from talon_tests.tiny_models import tiny_model
from talon_tests.trained_heads import trainings

VOCAB = 512
SAID = torch.tensor([3, 40, 41, 200, 333, 511])
"""All that the target says: of so few tokens a random head guesses some."""
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": VOCAB,
}
PROMPT = [*range(5, 40)]
NEW = 60


@pytest.fixture(autouse=True)
def _as_many_as_are_said(monkeypatch):
    """However slow the machine is just now."""
    monkeypatch.setattr(chain_rounds, "SECONDS_AHEAD", 100.0)


@pytest.fixture
def came(monkeypatch):
    """Of each tree, whether the target's answer was ready."""
    asked, walk = [], ChainRounds.walk

    def noted(self, *given):
        found = walk(self, *given)
        asked.append(found is not None)
        return found

    monkeypatch.setattr(ChainRounds, "walk", noted)
    return asked


@cache
def target_model():
    torch.manual_seed(3)
    config = LlamaConfig(**SIZES, num_hidden_layers=3, initializer_range=0.3, bos_token_id=0, eos_token_id=None)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        quiet = torch.ones(VOCAB, dtype=torch.bool)
        quiet[SAID] = False
        model.lm_head.weight[quiet] *= 0.01
    return model


@cache
def heads(folder):
    """Specs of an EAGLE-3 head with a draft vocabulary of its own, and of an EAGLE head with the target's."""
    model, training = target_model(), trainings(draft_vocab=9, steps=3)["eagle3"]
    ids = torch.tensor(sorted({*SAID.tolist(), 7, 90, 300}))
    torch.manual_seed(1)
    head = training.make(model, ids).float()
    with torch.no_grad():
        for weight in head.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    training.export(head, ids, {}, folder / "eagle3")
    eagle = EagleHead(LlamaConfig(**SIZES), 1, True, model.get_output_embeddings())
    (folder / "eagle").mkdir()
    save_file(eagle.state_dict(), folder / "eagle" / "model.safetensors")
    (folder / "eagle" / "config.json").write_text(json.dumps(SIZES))
    return {name: f"{name}:path={folder / name}" for name in ("eagle3", "eagle")}


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    return heads(tmp_path_factory.mktemp("heads"))


@attrs.frozen
class Levels(TreePolicy):
    """Chains whose tokens join, and are drafted from, where the path is likely enough."""

    name = "levels"
    joins: tuple[float, ...]
    goes_on: tuple[float, ...]
    wide: int = 1
    rounds: int = 1000
    account: Account | None = None
    budget: int = attrs.field(init=False, default=attrs.Factory(lambda self: len(self.joins) + 1, takes_self=True))

    def chains(self):
        return Chains(self.rounds, self.wide, self.joins, self.goes_on, self.account)

    def width(self, tree):
        return self.wide if len(tree) <= len(self.joins) else 0

    def grow(self, tree, candidates, choices):
        depth, path = len(tree) - 1, candidates.path_logp.flat[0]
        if not path >= self.joins[depth]:
            return Growth(np.arange(0))
        return Growth(np.arange(1), None if path >= self.goes_on[depth] else np.arange(0))


def decoder_of(drafter, policy="chain:length=3", model=None, rule="auto"):
    return decoder_for_model(model if model is not None else target_model(), None, Parts(drafter, policy, rule))


def told(result):
    """All of a text that may not change, to the bit."""
    rounds = [
        (
            one.tree.tokens.tolist(),
            one.tree.parents.tolist(),
            one.tree.path_logp.view(np.int64).tolist(),
            one.path.tolist(),
            one.tokens.tolist(),
            one.draft_passes,
        )
        for one in result.rounds
    ]
    return result.token_ids, rounds


def one_by_one(monkeypatch, decode):
    """What comes out where nothing is run ahead."""
    with monkeypatch.context() as patch:
        patch.setattr(ChainRounds, "run", lambda *_: 0.0)
        return decode()


def runs_of(monkeypatch):
    """Notes the rounds that each run has brought from now on."""
    ran, run_chains = [], NativeRecorder.run_chains

    def noted(self, run):
        found = run_chains(self, run)
        ran.append(found.rounds)
        return found

    monkeypatch.setattr(NativeRecorder, "run_chains", noted)
    return ran


def ahead_and_one_by_one(decoder, came, monkeypatch):
    """What comes out, run ahead as well as one by one, and the rounds that each run has brought."""
    ran = runs_of(monkeypatch)

    def decode():
        return told(decoder.generate(PROMPT, max_new_tokens=NEW))

    expected = one_by_one(monkeypatch, decode)
    came.clear()
    ran.clear()
    assert decode() == expected
    return expected, ran


def warmed(drafter, policy, model=None):
    """A decoder whose passes are recorded and compared."""
    decoder = decoder_of(drafter, policy, model)
    for _ in range(2):
        decoder.generate(PROMPT, max_new_tokens=NEW)
    return decoder


@cache
def warmed_on(library, drafter):
    """The library is the one that answers where kernels are asked for."""
    assert load() is library
    return warmed(drafter, "chain:length=3")


def warmed_three(drafter):
    return warmed_on(load(), drafter)


def quantiles(drafter, share):
    """Of the log-probabilities of paths of one, two and three tokens, the one that such a share lies below."""
    rounds = warmed_three(drafter).generate(PROMPT, max_new_tokens=NEW).rounds
    paths = [one.tree.path_logp[1:] for one in rounds if len(one.tree) == 4]
    return tuple(np.quantile(paths, share, axis=0, method="nearest").tolist())


def levels(drafter, wide=1):
    return Levels(quantiles(drafter, 0.3), quantiles(drafter, 0.5), wide)


POLICIES = {
    "one": lambda _: "chain:length=1",
    "three": lambda _: "chain:length=3",
    "levels": levels,
    "wide levels": lambda drafter: levels(drafter, 4),
    "wider than the draft vocabulary": lambda drafter: levels(drafter, 40),
}


ONE_AT_A_TIME = {"levels, one round at a time": lambda drafter: attrs.evolve(levels(drafter), rounds=1)}
"""As where a round is tried."""


def test_python_packs_what_c_reads(library):
    sizes = np.zeros(3, dtype=np.int64)
    library.chain_sizes(sizes.ctypes.data)
    assert sizes.tolist() == [ctypes.sizeof(PassFields), ctypes.sizeof(RoundsFields), MOST_DRAFTED]


@pytest.mark.parametrize("policy", [*POLICIES, *ONE_AT_A_TIME])
@pytest.mark.parametrize("drafter", ["eagle3", "eagle"])
def test_rounds_run_ahead_are_those_that_are_run_one_by_one(library, specs, came, monkeypatch, drafter, policy):
    decoder = warmed(specs[drafter], (POLICIES | ONE_AT_A_TIME)[policy](specs[drafter]))

    def decode():
        return told(decoder.generate(PROMPT, max_new_tokens=NEW))

    expected = one_by_one(monkeypatch, decode)
    came.clear()
    assert decode() == expected
    assert sum(came) > 0.8 * len(expected[1])
    assert {len(path) > 1 for _, _, _, path, _, _ in expected[1]} == {False, True}


@pytest.mark.parametrize("together", [1, 2, 3, 7, 100])
def test_a_profile_knows_what_such_rounds_take(library, specs, came, monkeypatch, together):
    """However many of them are run at once; there need be no trees as large as their chains."""
    run = ChainRounds.run

    def few(self, slot, kinds, pending, features, chains, *more):
        fewer = attrs.evolve(chains, rounds=min(chains.rounds, together))
        return run(self, slot, kinds, pending, features, fewer, *more)

    monkeypatch.setattr(ChainRounds, "run", few)
    wanted = ProfilePlan((1, 2), (30,), (1,), (2,), (2,), repetitions=2)
    found = Measuring(wanted, target_model(), None, specs["eagle3"], "tiny").run("tiny")
    assert {*found.chain_table.points} == {(layers,) for layers in CHAINS}
    assert any(came)
    assert all(0.0 < found.chain(layers) < 0.1 for layers in CHAINS)


def test_a_profile_of_a_drafter_that_runs_nothing_ahead_knows_nothing_of_such_rounds(library):
    wanted = ProfilePlan((1, 4), (30,), (1,), (2,), (2,), repetitions=1)
    assert not Measuring(wanted, target_model(), None, "ngram", "tiny").run("tiny").chain_table.points


@pytest.mark.parametrize("policy", ["three", "levels"])
def test_the_number_of_threads_changes_nothing(library, specs, came, threads, monkeypatch, policy):
    decoder = warmed(specs["eagle3"], POLICIES[policy](specs["eagle3"]))

    def decode():
        return told(decoder.generate(PROMPT, max_new_tokens=12))

    expected = one_by_one(monkeypatch, decode)
    came.clear()
    threads(2)
    assert decode() == expected
    assert any(came)


def test_the_number_of_threads_may_change_between_rounds(library, specs, came, threads):
    decoder = warmed_three(specs["eagle3"])
    expected, request = told(decoder.generate(PROMPT, max_new_tokens=12)), Request(np.array(PROMPT), 12)
    came.clear()
    generation = decoder.run(request)
    with decoder.engine.session():
        for at, _ in enumerate(generation):
            threads(1 + at % 2)
    assert told(generation.result()) == expected
    assert any(came)


def test_the_levels_are_reached_to_the_bit(library, specs, came, monkeypatch):
    """Levels that paths have exactly, and the numbers next above them."""
    paths = np.array(quantiles(specs["eagle3"], 0.5))
    lengths = []
    for exactly in (paths, np.nextafter(paths, math.inf)):
        own, all_of_them = tuple(exactly.tolist()), (-math.inf,) * 3
        for policy in (Levels(own, all_of_them), Levels(all_of_them, own)):
            decoder = warmed(specs["eagle3"], policy)
            expected = one_by_one(monkeypatch, lambda one=decoder: told(one.generate(PROMPT, max_new_tokens=NEW)))
            came.clear()
            assert told(decoder.generate(PROMPT, max_new_tokens=NEW)) == expected
            assert any(came)
            lengths.append([len(tokens) for tokens, *_ in expected[1]])
    assert lengths[:2] != lengths[2:]


@pytest.mark.parametrize("prompt", [[7], PROMPT[:2], PROMPT])
@pytest.mark.parametrize("new", [*range(1, 8), 41, 42, 43])
def test_texts_end_after_as_many_tokens_as_are_asked_for(library, specs, monkeypatch, prompt, new):
    decoder = warmed_three(specs["eagle3"])

    def decode():
        return told(decoder.generate(prompt, max_new_tokens=new))

    found = decode()
    assert len(found[0]) == new
    assert one_by_one(monkeypatch, decode) == found == decode()


@pytest.mark.parametrize("drafter", ["eagle3", "eagle"])
def test_texts_end_within_a_chain_that_was_run_ahead(library, specs, came, monkeypatch, drafter):
    decoder = warmed_three(specs[drafter])
    plain = decoder_of(None, "none").generate(PROMPT, max_new_tokens=NEW).token_ids
    within = 0
    for end in SAID.tolist():

        def decode(ends=end):
            return told(decoder.generate(PROMPT, max_new_tokens=NEW, eos_token_id=ends))

        came.clear()
        found = decode()
        assert found[0] == (plain[: plain.index(end) + 1] if end in plain else plain)
        assert one_by_one(monkeypatch, decode) == found
        within += any(end in tokens[1:] for tokens, *_ in found[1])
    assert within


# A policy that says what it does not do


@attrs.frozen
class Lies(TreePolicy):
    """Says chains of three candidates' width one, and does otherwise in every third round."""

    name = "lies"
    how: str = "stops"
    budget: int = attrs.field(default=9, init=False)
    seen: list[int] = attrs.field(factory=list, init=False, eq=False)

    def chains(self):
        return Chains(1000, 1, (-math.inf,) * 3, (-math.inf,) * 3)

    def _lies(self, how):
        return self.how == how and len(self.seen) % 3 == 2

    def width(self, tree):
        if self._lies("plain"):
            return 0
        if self._lies("stops") and len(tree) == 2:
            return 0
        return 4 if self._lies("wide") or self._lies("branches") else int(len(tree) < 4 or self._lies("deeper"))

    def grow(self, tree, candidates, choices):
        if self._lies("branches"):
            room = min(2, self.budget - len(tree))
            return Growth(candidates.best(room)) if len(tree) < 6 else Growth(np.arange(0))
        if self._lies("again") and len(tree) == 2:  # the root once more would be refused: the chain ends at its last
            return Growth(np.arange(1), np.arange(0))
        if self._lies("wide") and len(tree) < 4:
            return Growth(np.array([1]))
        return Growth(np.arange(1)) if len(tree) < (7 if self._lies("deeper") else 4) else Growth(np.arange(0))

    def finish(self, tree):
        if not self._lies("finishes"):
            return tree
        return TokenTree(tree.tokens[:2], tree.parents[:2], tree.path_logp[:2])

    def observe(self, round_):
        self.seen.append(len(round_.tokens))


@pytest.mark.parametrize("how", ["plain", "stops", "again", "branches", "wide", "deeper", "finishes"])
@pytest.mark.parametrize("drafter", ["eagle3", "eagle"])
def test_a_policy_that_does_not_do_what_it_said_gets_what_it_gets_without(
    library, specs, came, monkeypatch, drafter, how
):
    decoder = warmed(specs[drafter], Lies(how))

    def decode():
        return told(decoder.generate(PROMPT, max_new_tokens=NEW))

    expected = one_by_one(monkeypatch, decode)
    came.clear()
    assert decode() == expected
    assert True in came
    assert False in came


# A policy that need not be asked


@attrs.frozen
class Follows(Levels):
    """Notes what came, and in which rounds it was asked."""

    name = "follows"
    came: list[tuple[list[list[float]], int]] = attrs.field(default=None, eq=False)
    asked: list[list[float]] = attrs.field(default=None, eq=False)

    def chain_came(self, logp, nodes):
        self.came.append((logp.tolist(), nodes))

    def grow(self, tree, candidates, choices):
        if self.asked is not None:
            self.asked.append(candidates.logp[0].tolist())
        return Levels.grow(self, tree, candidates, choices)


@pytest.mark.parametrize("wide", [1, 4, 40])
@pytest.mark.parametrize("drafter", ["eagle3", "eagle"])
def test_a_policy_that_need_not_be_asked_is_told_what_it_would_be_shown(
    library, specs, came, monkeypatch, drafter, wide
):
    policy = Follows(quantiles(specs[drafter], 0.3), quantiles(specs[drafter], 0.5), wide, came=[], asked=[])
    decoder = warmed(specs[drafter], policy)

    def decode():
        policy.came.clear()
        policy.asked.clear()
        return told(decoder.generate(PROMPT, max_new_tokens=NEW))

    expected = one_by_one(monkeypatch, decode)
    shown = [*policy.asked]
    assert not policy.came
    came.clear()
    assert decode() == expected
    assert sum(came) > 0.8 * len(expected[1])
    assert len(policy.came) > 0.8 * len(expected[1])
    assert len(policy.asked) < 0.2 * len(shown)
    layers = [row for logp, _ in policy.came for row in logp]
    assert all(layer in shown for layer in layers)
    assert {nodes for _, nodes in policy.came} == {0, 1, 2, 3}


def test_a_subclass_that_grows_otherwise_is_asked(library, specs, came, monkeypatch):
    @attrs.frozen
    class First(Chain):
        """The first token alone."""

        def cut(self, layer, nodes, pool):
            return int(layer == 0), -math.inf

    decoder = warmed(specs["eagle3"], First(3))
    expected = one_by_one(monkeypatch, lambda: told(decoder.generate(PROMPT, max_new_tokens=NEW)))
    assert told(decoder.generate(PROMPT, max_new_tokens=NEW)) == expected
    assert {len(tokens) for tokens, *_ in expected[1][:-1]} == {2}


def test_chains_longer_than_the_budget_are_named(library, specs):
    @attrs.frozen
    class Long(Follows):
        name = "long"
        budget: int = attrs.field(init=False, default=3)

    everything = (-math.inf,) * 3
    with pytest.raises(PluginError, match=r"tree policy 'long'.* said chains of 3 drafted tokens, .* its budget is 3"):
        warmed(specs["eagle3"], Long(everything, everything))


def test_a_policy_that_fails_when_a_chain_came_is_named(library, specs):
    @attrs.frozen
    class Fails(Follows):
        name = "fails"

        def chain_came(self, logp, nodes):
            raise ValueError("no such chain")

    everything = (-math.inf,) * 3
    with pytest.raises(PluginError, match=r"tree policy 'fails'.* raised ValueError in chain_came: no such chain"):
        warmed(specs["eagle3"], Fails(everything, everything))


FINE = Ahead([3, 40], np.zeros((2, 1)), [0.1, 0.1])


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (3, "returned 3 from ahead; it must return an Ahead, or None"),
        (attrs.evolve(FINE, seconds=[0.1]), "each layer has a time and candidates"),
        (attrs.evolve(FINE, drafted=[3, 40, 41]), "each layer has a time and candidates"),
        (attrs.evolve(FINE, drafted=[], logp=np.zeros((0, 1)), seconds=[]), "each layer has a time and candidates"),
        (attrs.evolve(FINE, seconds=[0.1, math.nan]), "says in ahead that nan seconds were spent"),
        (attrs.evolve(FINE, logp=np.zeros(2)), "gave no log-probabilities of candidates from ahead"),
        (attrs.evolve(FINE, logp=[[0.0], [0.0]]), "gave no log-probabilities of candidates from ahead"),
        (attrs.evolve(FINE, logp=np.array([[0.0], [np.nan]])), "not a finite number of at most 0"),
        (attrs.evolve(FINE, logp=np.array([[0.0], [0.5]])), "not a finite number of at most 0"),
        (attrs.evolve(FINE, logp=np.array([[0.0], [-np.inf]])), "not a finite number of at most 0"),
        (Ahead([3] * 5, np.zeros((5, 1)), [0.1] * 5), "drafted 5 tokens ahead; at most 3 fit the round"),
        (attrs.evolve(FINE, drafted=[3, VOCAB]), r"drafted \[3, 512\] ahead; the target's vocabulary has ids 0 to 511"),
        (attrs.evolve(FINE, drafted=[3, -1]), "ahead; the target's vocabulary has ids 0 to 511"),
        (attrs.evolve(FINE, drafted=[3, "a"]), "ahead; the target's vocabulary has ids 0 to 511"),
        (attrs.evolve(FINE, drafted=3), "raised TypeError in ahead"),
        (
            attrs.evolve(FINE, draws=AheadDraws([-0.1, -0.1], lambda _: np.full(VOCAB, 1 / VOCAB))),
            "says from ahead that tokens were drawn, and the likeliest were asked for",
        ),
    ],
)
def test_a_drafter_that_has_nonsense_ready_is_named(library, specs, monkeypatch, said, why):
    decoder = warmed(specs["eagle3"], "chain:length=3")
    monkeypatch.setattr(FeatureDrafter, "ahead", lambda *_: said)
    with pytest.raises(PluginError, match=f"drafter .*{why}"):
        decoder.generate(PROMPT, max_new_tokens=NEW)


# What else may come between


def drafter_of(decoder):
    """The drafter, as the engine asks it."""
    found = decoder.engine.parts.drafter
    assert isinstance(found, FeatureDrafter)
    return found


def test_a_text_beside_a_longer_one_that_is_kept_grows_beyond_it(library, specs, came, monkeypatch):
    """Angles are computed for all positions that rounds may reach, counted from the text's own."""

    def decode():
        decoder = decoder_of(specs["eagle3"])
        decoder.generate(PROMPT * 2, max_new_tokens=20)
        found = told(decoder.generate([9, 9, 3], max_new_tokens=150))
        assert len(decoder.engine._slots.kept) == 2
        return found

    expected = one_by_one(monkeypatch, decode)
    came.clear()
    assert decode() == expected
    assert sum(came) > 0.8 * len(expected[1])


@pytest.mark.parametrize("rounds", [1, 2, 7])
@pytest.mark.parametrize("other", [PROMPT, PROMPT[:9], [*PROMPT, 3, 40], [9, 9, 3]])
def test_a_text_that_is_cancelled_leaves_nothing_to_the_next(library, specs, came, monkeypatch, rounds, other):
    decoder = warmed_three(specs["eagle3"])
    decoder.engine.forget()
    expected = one_by_one(monkeypatch, lambda: told(decoder.generate(other, max_new_tokens=30)))
    decoder.engine.forget()
    came.clear()
    with decoder.engine.session():
        first = decoder.engine.submit(Request(np.array(PROMPT), NEW))
        while len(first.rounds) < rounds:
            decoder.engine.step()
        decoder.engine.cancel(first)
        came.clear()
        second = decoder.run(Request(np.array(other), 30))
        for _ in second:
            pass
    assert told(second.result()) == expected
    assert any(came)


@pytest.mark.parametrize("joins", [2, 5])
def test_another_sequence_may_join_while_rounds_are_ready(library, specs, came, monkeypatch, joins):
    decoder = warmed(specs["eagle3"], "chain:length=3")  # of its own: others may have had to run fewer
    texts = np.array(PROMPT), np.array(PROMPT[3:12])

    def decode():
        decoder.engine.forget()
        with decoder.engine.session():
            first = decoder.engine.submit(Request(texts[0], 40))
            while len(first.rounds) < joins:
                decoder.engine.step()
            second = decoder.engine.submit(Request(texts[1], 14))
            while not (first.finished and second.finished):
                decoder.engine.step()
        return [[one.tokens.tolist() for one in sequence.rounds] for sequence in (first, second)]

    def texts_of(found):  # how large trees are that share a pass hangs on the time that passes take
        return [[token for tokens in rounds for token in tokens] for rounds in found]

    expected = texts_of(one_by_one(monkeypatch, decode))
    came.clear()
    assert texts_of(decode()) == expected
    assert any(came[:joins])
    assert any(came[joins:])


def test_weights_that_change_between_sessions_are_seen(library, specs, came, monkeypatch):
    model = tiny_copy()
    decoder = warmed(specs["eagle3"], "chain:length=3", model)
    before = decoder.generate(PROMPT, max_new_tokens=30).token_ids
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(-1.5)
    after = told(decoder.generate(PROMPT, max_new_tokens=30))
    assert after[0] == decoder_of(None, "none", model).generate(PROMPT, max_new_tokens=30).token_ids != before
    for _ in range(2):
        decoder.generate(PROMPT, max_new_tokens=NEW)
    came.clear()
    assert told(decoder.generate(PROMPT, max_new_tokens=30)) == after
    assert any(came)


def tiny_copy():
    model = LlamaForCausalLM(target_model().config).eval()
    model.load_state_dict(target_model().state_dict())
    return model


@pytest.mark.parametrize("at", [1, 6])
def test_whoever_is_interrupted_goes_on_with_another_text(library, specs, monkeypatch, at):
    decoder = warmed_three(specs["eagle3"])
    expected = told(decoder.generate(PROMPT, max_new_tokens=30))
    asked, commit = [], FeatureDrafter.commit

    def interrupted(self, committed):
        asked.append(committed)
        if len(asked) == at:
            raise KeyboardInterrupt
        commit(self, committed)

    with monkeypatch.context() as patch:
        patch.setattr(FeatureDrafter, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoder.generate(PROMPT, max_new_tokens=30)
    assert told(decoder.generate(PROMPT, max_new_tokens=30)) == expected


AHEAD = {"mistral-window"}
"""The pass of a head over Gemma 3's embeddings is not recorded."""


@pytest.mark.parametrize("architecture", ["mistral-window", "gemma3"])
def test_models_with_windows_run_ahead_too(library, tmp_path, came, monkeypatch, architecture):
    model, training = tiny_model(architecture, head_dim=32), trainings(draft_vocab=97, steps=3)["eagle3"]
    training.export(training.make(model, torch.arange(97)).float(), torch.arange(97), {}, tmp_path / "head")
    decoder = warmed(f"eagle3:path={tmp_path / 'head'}", "chain:length=2", model)

    def decode():
        return told(decoder.generate(PROMPT, max_new_tokens=40))

    expected = one_by_one(monkeypatch, decode)
    came.clear()
    assert decode() == expected
    assert any(came) == (architecture in AHEAD)


def test_two_decoders_of_one_target_take_turns(library, specs, came, monkeypatch):
    targets = SharedTargets()
    one, other = (
        targets.decoder(target_model(), None, Parts(specs["eagle3"], policy))
        for policy in ("chain:length=3", "chain:length=2")
    )
    assert one.target is other.target
    expected = []
    for decoder in (one, other):
        for _ in range(2):
            decoder.generate(PROMPT, max_new_tokens=NEW)
        expected.append(one_by_one(monkeypatch, lambda of=decoder: told(of.generate(PROMPT, max_new_tokens=30))))
    for _ in range(2):
        came.clear()
        assert [told(decoder.generate(PROMPT, max_new_tokens=30)) for decoder in (one, other)] == expected
        assert any(came)


def test_texts_that_are_over_leave_no_rows_behind(library, specs):
    """Those that end while their last round is staged, too; other slots keep their texts."""
    decoder = decoder_of(specs["eagle3"], "eagle2:budget=12")
    drafter, sizes = drafter_of(decoder), []
    for at in range(60):
        decoder.generate([5 + at, 6, 7, *range(9, 20)], max_new_tokens=8)
        sizes.append((len(drafter._given.table), len(drafter._rows.table)))
    assert sizes[-1] == sizes[0]


# Parts that answer nonsense


@attrs.frozen
class Says(Levels):
    name = "says"
    said: object = None

    def chains(self):
        return self.said


@pytest.mark.parametrize("said", [3, "chains", ((0.0,), (0.0,)), True])
def test_a_policy_whose_chains_are_none_is_named(library, specs, said):
    policy = Says((-math.inf,), (-math.inf,), said=said)
    with pytest.raises(
        PluginError, match=r"tree policy 'says.* returned .* from chains; it must return Chains, or None"
    ):
        decoder_of(specs["eagle3"], policy).generate(PROMPT, max_new_tokens=9)


@pytest.mark.parametrize("said", [math.nan, math.inf, -1.0, "long", None, True])
@pytest.mark.parametrize("method", ["run_on", "propose"])
def test_a_drafter_that_spends_no_seconds_is_named(library, specs, monkeypatch, method, said):
    decoder, propose = decoder_of(specs["eagle3"]), FeatureDrafter.propose
    if method == "run_on":
        monkeypatch.setattr(FeatureDrafter, "run_on", lambda *_: RanOn(said))
    else:
        monkeypatch.setattr(FeatureDrafter, "propose", lambda *given: attrs.evolve(propose(*given), ran_in=said))
    with pytest.raises(PluginError, match=f"drafter .* says in {method} that .* seconds were spent; that must be"):
        decoder.generate(PROMPT, max_new_tokens=9)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (0.5, "returned 0.5 from run_on; it must return a RanOn"),
        (None, "returned None from run_on; it must return a RanOn"),
        (RanOn(0.1, 3), "says that it has read 3; it must be a Reading, or None"),
    ],
)
def test_a_drafter_that_says_nonsense_of_what_it_ran_is_named(library, specs, monkeypatch, said, why):
    decoder = decoder_of(specs["eagle3"])
    monkeypatch.setattr(FeatureDrafter, "run_on", lambda *_: said)
    with pytest.raises(PluginError, match=f"drafter .*{why}"):
        decoder.generate(PROMPT, max_new_tokens=9)


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("policy", ["three", "levels"])
@pytest.mark.parametrize("drafter", ["eagle3", "eagle"])
def test_what_waits_is_read_before_rounds_are_run_ahead(library, specs, came, monkeypatch, drafter, policy, refuses):
    """A text's first round with a draft is no exception. What was read is told apart from its layers, and once,
    whether rounds are run behind it or not, and whether the policy is asked for its trees or not."""
    decoder, prompt = warmed(specs[drafter], POLICIES[policy](specs[drafter])), [*range(60, 95)]
    caught_up, read = MeasuredCosts.caught_up, []

    def noted(self, tokens, seconds):
        read.append((tokens, seconds))
        caught_up(self, tokens, seconds)

    monkeypatch.setattr(MeasuredCosts, "caught_up", noted)

    def decode():
        decoder.engine.forget()
        return decoder.generate(prompt, max_new_tokens=NEW)

    expected = told(decode())
    if refuses:
        monkeypatch.setattr(ChainRounds, "run", lambda *_: 0.0)
    read.clear()
    came.clear()
    result = decode()
    assert told(result) == expected
    assert came[0] is not refuses
    ((tokens, seconds),) = read
    (first, span), *others = [(one, span) for one in result.rounds for span in one.spans if span.work == "reading"]
    assert (tokens, first, others) == (len(prompt) - 2, result.rounds[0], [])
    assert span.seconds == pytest.approx(seconds)
    assert all(span.end <= one.start for one in first.spans if one is not span)
    assert all(one.seconds > 0.0 for one in first.spans if one.work == "layer")


# Texts whose tokens are drawn


DRAWN = {
    "hot": {"temperature": 1.5},
    "cold": {"temperature": 0.4},
    "few": {"temperature": 0.9, "top_k": 4},
}


def drawing(drafter, policy, how, rule="auto"):
    """A decoder whose drawn passes are recorded and compared."""
    decoder = decoder_of(drafter, policy, rule=rule)
    for seed in range(3):
        decoder.generate(PROMPT, max_new_tokens=NEW, seed=seed, **how)
    return decoder


@pytest.mark.parametrize("how", DRAWN)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("drafter", ["eagle3", "eagle"])
def test_drawn_rounds_run_ahead_are_those_that_are_run_one_by_one(
    library, specs, came, monkeypatch, drafter, policy, how
):
    decoder = drawing(specs[drafter], POLICIES[policy](specs[drafter]), DRAWN[how])
    for seed in range(4):

        def decode(seed=seed):
            return told(decoder.generate(PROMPT, max_new_tokens=NEW, seed=seed, **DRAWN[how]))

        expected = one_by_one(monkeypatch, decode)
        came.clear()
        assert decode() == expected
        assert sum(came) > 0.5 * len(expected[1])
        plain = decoder_of(None, "none").generate(PROMPT, max_new_tokens=NEW, seed=seed, **DRAWN[how])
        assert plain.token_ids == expected[0]  # one number for each token, whoever drafts and however far


@attrs.frozen
class DrawnLevels(Levels):
    """Chains whose tokens are drawn at a temperature of their own, where the drafter is sure enough."""

    name = "drawn-levels"
    children = "sampled-chain"
    at: float = 0.8

    def chains(self):
        return attrs.evolve(super().chains(), drawn=self.at)

    def chain_came(self, logp, nodes):
        assert nodes <= len(logp)

    def grow(self, tree, candidates, choices):
        depth = len(tree) - 1
        if not candidates.path_logp.flat[0] >= self.joins[depth]:
            return Growth(np.arange(0))
        drawn = candidates.draw(choices, 0, law=sharpened(candidates.law(0), self.at))
        goes_on = tree.path_logp[-1] + drawn.logp[0] >= self.goes_on[depth]
        return Growth(np.arange(0), None if goes_on else np.arange(0), {0: drawn})


def drawn_levels(drafter, wide=1):
    return DrawnLevels(quantiles(drafter, 0.1), tuple(2.0 * one for one in quantiles(drafter, 0.1)), wide)


DRAFTED = {
    "one": lambda _: "sampled-chain:length=1",
    "three": lambda _: "sampled-chain:length=3",
    "three, sharper": lambda _: "sampled-chain:length=3,temperature=0.6",
    "at a temperature": lambda _: "sampled-chain:length=2,temperature=0.9,follows=False",
    "levels": drawn_levels,
    "wide levels": lambda drafter: drawn_levels(drafter, 4),
}


def shapes_of(found):
    """All of what was told but how likely paths are, which C adds up in another order; and that."""
    token_ids, rounds = found
    logp = [np.array(one[2], dtype=np.int64).view(np.float64) for one in rounds]
    return (token_ids, [(*one[:2], *one[3:]) for one in rounds]), np.concatenate(logp)


@pytest.mark.parametrize("how", DRAWN)
@pytest.mark.parametrize("rule", ["hybrid", pytest.param("rrs", marks=pytest.mark.matrix)])  # both test in turn
@pytest.mark.parametrize("policy", DRAFTED)
@pytest.mark.parametrize("drafter", ["eagle3", "eagle"])
def test_rounds_of_drawn_children_run_ahead_are_those_that_are_run_one_by_one(
    library, specs, came, monkeypatch, drafter, policy, rule, how
):
    decoder = drawing(specs[drafter], DRAFTED[policy](specs[drafter]), DRAWN[how], rule)
    accepted, rejected = 0, 0
    for seed in range(4):

        def decode(seed=seed):
            return told(decoder.generate(PROMPT, max_new_tokens=NEW, seed=seed, **DRAWN[how]))

        expected, along = shapes_of(one_by_one(monkeypatch, decode))
        came.clear()
        found, logp = shapes_of(decode())
        assert found == expected
        assert logp == pytest.approx(along, abs=1e-9)
        assert sum(came) > 0.5 * len(expected[1])
        paths = [(len(tokens), len(path)) for tokens, _, path, *_ in expected[1]]
        accepted += sum(path > 1 for _, path in paths)
        rejected += sum(path < nodes for nodes, path in paths)
    assert accepted > 0
    assert rejected > 10


def test_c_has_as_many_numbers_as_drawn_chains_may_take_and_no_tokens_that_the_target_has_not(
    library, specs, monkeypatch
):
    decoder = drawing(specs["eagle3"], "sampled-chain:length=3", DRAWN["hot"], "rrs")
    run_chains, seen = NativeRecorder.run_chains, []

    def noted(self, run):
        one_more = np.arange(run.next.recorded.made[1].shape[1]) if run.ids is None else run.ids.copy()
        one_more[-1] = 10**6
        seen.append((len(run.draws.numbers), run.rounds, run_chains(self, attrs.evolve(run, ids=one_more))))
        return run_chains(self, run)

    monkeypatch.setattr(NativeRecorder, "run_chains", noted)
    decoder.generate(PROMPT, max_new_tokens=NEW, seed=3, **DRAWN["hot"])
    assert seen
    assert [(numbers, found) for numbers, _, found in seen] == [((2 * 3 + 1) * rounds, None) for _, rounds, _ in seen]


@pytest.mark.parametrize("rule", ["block", "match"])
def test_drawn_children_that_the_target_cannot_test_are_not_run_ahead(library, specs, came, rule):
    decoder = drawing(specs["eagle3"], "sampled-chain:length=2", DRAWN["cold"], rule)
    came.clear()
    found = decoder.generate(PROMPT, max_new_tokens=NEW, seed=3, **DRAWN["cold"])
    assert not any(came)
    assert all(len(one.tree) > 1 for one in found.rounds[:-1])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda draws: None, "does not say from ahead how tokens were drawn that were to be"),
        (lambda draws: attrs.evolve(draws, law=lambda place: 2 * draws.law(place)), "gave a law that sums to 2"),
        (lambda draws: attrs.evolve(draws, law=lambda place: draws.law(place)[:-1]), "gave a law of shape"),
    ],
)
def test_a_drafter_that_tells_draws_wrongly_is_named(library, specs, monkeypatch, change, why):
    decoder = drawing(specs["eagle3"], "sampled-chain:length=2", DRAWN["cold"], "hybrid")
    ahead = FeatureDrafter.ahead

    def told_wrongly(self, slot):
        found = ahead(self, slot)
        return found if found is None or not found.drafted else attrs.evolve(found, draws=change(found.draws))

    monkeypatch.setattr(FeatureDrafter, "ahead", told_wrongly)
    with pytest.raises(PluginError, match=f"drafter .*{why}"):
        decoder.generate(PROMPT, max_new_tokens=NEW, seed=1, **DRAWN["cold"])


def test_drawn_children_of_several_texts_are_tested_by_the_rule(library, specs):
    decoder = drawing(specs["eagle3"], "sampled-chain:length=2", DRAWN["cold"], "hybrid")
    alone = decoder.generate(PROMPT, max_new_tokens=20, seed=1, **DRAWN["cold"])
    first, _ = decoder.generate([PROMPT, PROMPT[:9]], batch_size=2, max_new_tokens=20, seed=1, **DRAWN["cold"])
    assert first.token_ids == alone.token_ids


def test_drawn_chains_are_accepted_in_part(library, specs):
    found = [
        len(one.path)
        for seed in range(4)
        for one in drawing(specs["eagle3"], "chain:length=3", DRAWN["cold"])
        .generate(PROMPT, max_new_tokens=NEW, seed=seed, **DRAWN["cold"])
        .rounds
    ]
    assert {1, 2} <= {*found}


@pytest.mark.parametrize("new", [1, 2, 3, 7, 41])
def test_drawn_texts_end_after_as_many_tokens_as_are_asked_for(library, specs, monkeypatch, new):
    decoder = drawing(specs["eagle3"], "chain:length=3", DRAWN["cold"])

    def decode():
        return told(decoder.generate(PROMPT[:9], max_new_tokens=new, seed=5, **DRAWN["cold"]))

    found = decode()
    assert len(found[0]) == new
    assert one_by_one(monkeypatch, decode) == found == decode()


def test_drawn_texts_end_within_a_chain_that_was_run_ahead(library, specs, monkeypatch):
    decoder = drawing(specs["eagle3"], "chain:length=3", DRAWN["cold"])
    for seed, end in enumerate(SAID.tolist()):

        def decode(end=end, seed=seed):
            how = {"eos_token_id": end, "seed": seed, **DRAWN["cold"]}
            return told(decoder.generate(PROMPT, max_new_tokens=NEW, **how))

        found = decode()
        assert end not in found[0][:-1]
        assert one_by_one(monkeypatch, decode) == found


def test_texts_that_are_drawn_otherwise_follow_each_other(library, specs, came, monkeypatch):
    """Greedy ones, and others with other numbers and at other temperatures: each is what it is alone."""
    decoder = drawing(specs["eagle3"], "chain:length=2", DRAWN["cold"])
    for _ in range(2):
        decoder.generate(PROMPT, max_new_tokens=NEW)
    asked = [{}, {"seed": 1, **DRAWN["cold"]}, {"seed": 2, **DRAWN["hot"]}, {}, {"seed": 1, **DRAWN["few"]}]

    def decode():
        found = []
        for how in asked:
            decoder.engine.forget()
            found.append(told(decoder.generate(PROMPT, max_new_tokens=20, **how)))
        return found

    expected = one_by_one(monkeypatch, decode)
    came.clear()
    assert decode() == expected
    assert any(came)


def test_rounds_whose_numbers_are_others_are_run_anew(library, specs, came, monkeypatch):
    """Somebody draws with the text's choices between two rounds: what was run ahead holds no more."""
    decoder = drawing(specs["eagle3"], "chain:length=2", DRAWN["cold"])
    sampling = temperature_sampling(0.4)

    def decode():
        decoder.engine.forget()
        with decoder.engine.session():
            sequence = decoder.engine.submit(Request(np.array(PROMPT), 30, sampling, seed=3))
            while not sequence.finished:
                decoder.engine.step()
                if len(sequence.rounds) % 4 == 2:
                    sequence.choices.pick(np.array([0.5, 0.5]))
        return sequence.token_ids

    expected = one_by_one(monkeypatch, decode)
    came.clear()
    assert decode() == expected
    assert {*came} == {True, False}


def hybrid_of(specs, heard):
    of = specs["eagle3"].replace(":", "[") + "]"
    return f"hybrid:of={of}+ngram,heard={heard}"


@pytest.mark.parametrize("heard", [0.0, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("policy", ["one", "three", "levels"])
def test_a_model_beside_look_ups_runs_ahead_until_one_is_heard(library, specs, came, monkeypatch, policy, heard):
    decoder = warmed(hybrid_of(specs, heard), POLICIES[policy](specs["eagle3"]))

    def decode():
        return told(decoder.generate(PROMPT, max_new_tokens=NEW))

    expected = one_by_one(monkeypatch, decode)
    came.clear()
    assert decode() == expected
    assert any(came) == (heard > 0.0)
    assert heard < 1.0 or sum(came) > 0.8 * len(expected[1])
    assert heard in (0.0, 1.0) or any(passes == 0 for *_, passes in expected[1])  # a look-up was sure


@pytest.mark.parametrize("look_up", ["pld", "lookahead[window=0]"])
def test_beside_a_look_up_that_does_not_go_on_one_round_at_a_time_runs_ahead(
    library, specs, came, monkeypatch, look_up
):
    decoder = warmed(hybrid_of(specs, 0.5).replace("+ngram", f"+{look_up}"), POLICIES["three"](specs["eagle3"]))
    _, ran = ahead_and_one_by_one(decoder, came, monkeypatch)
    assert any(came)
    assert {*map(len, ran)} == {1}


@pytest.mark.parametrize("credit", [-1.0, 0.0, 0.7, 2.0, 9.0])
def test_rounds_end_where_an_account_is_spent(library, specs, came, monkeypatch, credit):
    account = Account(credit, 0.45, 0.1, (1.0, 1.15, 1.35, 1.6), 0.9)
    decoder = warmed(specs["eagle3"], attrs.evolve(levels(specs["eagle3"]), account=account))
    expected, ran = ahead_and_one_by_one(decoder, came, monkeypatch)
    assert sum(came) > 0.8 * len(expected[1])
    for rounds in ran[:-1]:  # the last one ends with the text
        left = [credit]
        for one in rounds:
            left.append(left[-1] + account.of(one.layers, len(one.drafted), len(one.emitted)))
        assert all(before >= account.least for before in left[1:-1])
        assert left[-1] < account.least
    assert len(ran) > 2 or credit > 2.0


@attrs.frozen
class ChoosesNgram(Chain, SourceChooser):
    name = "chooses-ngram"
    chooses_source = True
    chosen: list[int] = attrs.field(factory=list, init=False, eq=False)

    def begin(self, sequence):
        return self

    def source(self):
        self.chosen.append(1)
        return 1


def test_a_policy_that_chooses_who_drafts_is_asked_in_each_round(library, specs, came):
    policy = ChoosesNgram(length=2)
    decoder = warmed(hybrid_of(specs, 1.0), policy)
    policy.chosen.clear()
    came.clear()
    found = decoder.generate(PROMPT, max_new_tokens=NEW)
    assert not any(came)
    assert len(policy.chosen) >= len(found.rounds) - 1
    assert found.stats.draft_passes == 0


@pytest.mark.parametrize("how", DRAWN)
def test_drawn_rounds_beside_look_ups_run_ahead_until_one_is_heard(library, specs, came, monkeypatch, how):
    decoder = drawing(hybrid_of(specs, 0.5), "chain:length=2", DRAWN[how])

    def decode():
        return told(decoder.generate(PROMPT, max_new_tokens=NEW, seed=3, **DRAWN[how]))

    expected = one_by_one(monkeypatch, decode)
    came.clear()
    assert decode() == expected
    assert any(came)


def asking(monkeypatch, wanted):
    """Whoever runs rounds ahead asks `wanted` before each of them but the first."""
    run_on = FeatureDrafter.run_on
    monkeypatch.setattr(FeatureDrafter, "run_on", lambda self, *given: run_on(self, *given, wanted=wanted))


@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_round_is_run_that_is_not_wanted(library, specs, came, monkeypatch, most):
    """And whoever is asked hears of all that was emitted before."""
    decoder = warmed_three(specs["eagle3"])
    expected, asked, ran = told(decoder.generate(PROMPT, max_new_tokens=NEW)), [], runs_of(monkeypatch)

    def wanted(new):
        asked.append([*new])
        return len(asked) % most != 0

    asking(monkeypatch, wanted)
    came.clear()
    assert told(decoder.generate(PROMPT, max_new_tokens=NEW)) == expected
    assert came.count(False) <= 1  # of the last token alone
    assert {len(rounds) for rounds in ran[:-1]} == {most}
    emitted = [token for rounds in ran for one in rounds for token in one.emitted]
    assert expected[0][: len(emitted)] == emitted
    assert len(emitted) >= NEW - 1
    told_of = [[token for one in rounds[:end] for token in one.emitted] for rounds in ran for end in range(1, most + 1)]
    assert asked == told_of[: len(asked)]


@pytest.mark.parametrize("error", [ValueError("no such place"), RuntimeError("none"), KeyboardInterrupt()])
def test_what_is_raised_by_whoever_is_asked_is_raised(library, specs, monkeypatch, error):
    decoder = warmed_three(specs["eagle3"])
    expected = told(decoder.generate(PROMPT, max_new_tokens=NEW))

    def wanted(new):
        raise error

    with monkeypatch.context() as patch:
        asking(patch, wanted)
        with pytest.raises(
            (PluginError, KeyboardInterrupt), match=f"raised {type(error).__name__} in run_on" if error.args else None
        ):
            decoder.generate(PROMPT, max_new_tokens=NEW)
    assert told(decoder.generate(PROMPT, max_new_tokens=NEW)) == expected


def test_a_policy_is_told_that_chains_are_run_ahead_where_they_are(library, specs, monkeypatch):
    told_of = []
    monkeypatch.setattr(Chain, "begin", lambda self, sequence: told_of.append(sequence.runs_on) or self)
    decoder = decoder_of(specs["eagle3"], "chain:length=2")
    for how in ({}, {"temperature": 0.7}, {"temperature": 0.7, "top_k": 9}):
        decoder.generate(PROMPT, max_new_tokens=3, **how)
    assert told_of == [True] * 3
    told_of.clear()
    for how in ({"temperature": 0.7, "top_p": 0.9}, {"repetition_penalty": 1.2}):
        decoder.generate(PROMPT, max_new_tokens=3, **how)
    assert told_of == [False] * 2
