"""The drafter `conflayers`: which layers it leaves out, what it drafts without them, and the target is untouched."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from talon_core import Frontier, PluginError, Request, TableTarget, TokenTree
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.hf.target import HFTarget
from talon_core.plugins.parts import Parts
from talon_core.plugins.registry import load_registry
from talon_core.runtime.cache import TreeCache
from talon_core.runtime.cache_keyword import cache_keyword
from talon_core.runtime.fewer_layers import without_layers
from talon_core.runtime.states import decoder_layers
from talon_core.testing import check_drafter
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import TapedBackend, TapeRecorder
from talon_drafters import ConfLayers, HybridSpec
from talon_drafters.conflayers.confidence import Confidence, confidence
from talon_drafters.conflayers.drafter import ConfLayersDrafter
from talon_drafters.conflayers.selection import EQUAL, STEPS, every_second, skipped
from talon_strategies import Chain, Match, Talon
from talon_tests.tiny_models import tiny_model

SCORES = st.lists(st.floats(0, 2), min_size=1, max_size=12).map(np.array)


def test_which_layers_are_left_out_by_hand() -> None:
    """Four layers whose scores are 0, 2, 1 and 5: mean 2, and sqrt(3.5) = 1.87 the standard deviation.

    So the levels are -1.07, 0, -0.53 and 1.60. Around the first are 0 and -0.53: mean -0.27, deviation 0.27. Around the
    second -1.07, -0.53 and 1.60: 0 and 1.15. Around the third -1.07, 0 and 1.60: 0.18 and 1.10. Around the fourth 0
    and -0.53: -0.27 and 0.27. With lambda 0 the first (-1.07 < -0.27) and the third (-0.53 < 0.18) are left out, and
    the second is not, as 0 is not below 0 but for rounding: that is a half. For a quarter lambda rises: the third is
    below 0.18 - 1.10 lambda up to lambda 0.64, so at 0.65 the first is alone. For three quarters lambda falls, and the
    second, 0 < 0 - 1.15 lambda, joins at once.
    """
    scores = np.array([0.0, 2.0, 1.0, 5.0]) + np.array([0.0, 1e-6, 0.0, 0.0])
    assert skipped(scores, 0.4, 0.6) == (0, 2)
    assert skipped(scores, 0.2, 0.3) == (0,)
    assert skipped(scores, 0.7, 0.8) == (0, 1, 2)


def test_equal_layers_are_all_as_good() -> None:
    assert skipped(np.full(5, 0.3), 0.4, 0.45) == ()
    assert skipped(np.array([0.3]), 0.4, 0.45) == ()
    assert skipped(np.array([]), 0.4, 0.45) == ()


@settings(max_examples=50)
@given(SCORES, st.floats(0, 1), st.floats(0, 1))
def test_they_are_those_that_the_definition_gives_layer_by_layer(scores: Any, one: float, other: float) -> None:
    least, most = sorted((one, other))
    if np.std(scores) <= EQUAL:
        assert skipped(scores, least, most) == ()
        return
    levels = [(each - np.mean(scores)) / np.std(scores) for each in scores]
    around = [[levels[at] for at in range(len(levels)) if 0 < abs(at - layer) <= 2] for layer in range(len(levels))]
    bounds = [(np.mean(others), np.std(others)) for others in around]
    tried, move = [], 0
    while len(tried) < STEPS:
        own = tuple(at for at, (mean, std) in enumerate(bounds) if levels[at] < mean - move * 0.05 * std)
        share = len(own) / len(levels)
        tried.append((share, own))
        if least <= share <= most:
            break
        move += 1 if share > most else -1
    in_range = [own for share, own in tried if least <= share <= most]
    nearest = min(tried, key=lambda each: abs(each[0] - (least + most) / 2))[1]
    assert skipped(scores, least, most) == (in_range or [nearest])[0]


def test_before_anything_is_known_every_second_layer_is_left_out() -> None:
    assert every_second(3) == (1,)
    assert every_second(4) == (1,)
    assert every_second(7) == (1, 3, 5)


def test_confidence_goes_from_even_to_certain() -> None:
    assert confidence(torch.zeros(3, 8)).item() == pytest.approx(0)
    assert confidence(torch.tensor([[1000.0, 0.0, 0.0, 0.0]])).item() == pytest.approx(1)
    two = torch.tensor([[0.0, 0.0, -1000.0, -1000.0], [0.0, 0.0, 0.0, 0.0]])  # ln 2 and ln 4, of ln 4
    assert confidence(two).item() == pytest.approx(1 - (0.5 + 1) / 2)


def test_a_layers_score_is_that_of_its_two_halves() -> None:
    model = tiny_model("llama")
    layers = decoder_layers(model)
    kept: dict[tuple[int, str], Any] = {}
    for place in (1, 2):
        for name in ("self_attn", "mlp"):

            def keep(_module: nn.Module, _args: Any, out: Any, at: tuple[int, str] = (place, name)) -> None:
                kept[at] = out[0] if isinstance(out, tuple) else out

            getattr(layers[place], name).register_forward_hook(keep)
    with torch.inference_mode(), Confidence(layers, model).measured() as scores:
        model(input_ids=torch.tensor([[5, 9, 3, 7]]))
    for place in (1, 2):
        expected = 0.0
        for name in ("self_attn", "mlp"):
            law = torch.softmax(kept[place, name][0].double(), -1)
            expected += float((1 + (law * law.log()).sum(-1) / math.log(law.shape[-1])).mean())
        assert scores[place - 1] == pytest.approx(expected)
    assert [len(layers[place].self_attn._forward_hooks) for place in range(4)] == [0, 1, 1, 0]


def deep_model(layers: int = 9, vocab: int = 11) -> Any:
    """A model whose layers are of several sizes, so that what is left out differs from text to text."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 3, "num_key_value_heads": 1}
    config = LlamaConfig(
        **sizes, num_hidden_layers=layers, vocab_size=vocab, initializer_range=0.5, max_position_embeddings=64
    )
    return LlamaForCausalLM(config).double().eval()


def sdpa() -> Any:
    return load_registry().get("attention backend", "sdpa").cls()


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen3-moe", "opt", "deep", "mistral-window"])
def test_laws_are_those_of_the_layers_over_the_targets_own_keys_and_values(architecture: str) -> None:
    """By transformers: the whole model reads the text, the model without layers goes on with that cache."""
    model = deep_model() if architecture == "deep" else tiny_model(architecture)
    target = HFTarget(model, sdpa())
    drafter = ConfLayers(context=4, every=4).open(target)
    text, vocab = [5, 9, 3, 7, 2, 8, 1, 4, 6, 10], target.vocab_size
    with target.session(), torch.inference_mode():
        target.open(0, 40)
        drafter.open(0, np.array(text), 40)
        target.read({0: np.array(text[:-1])})
        tree = TokenTree.root(text[-1])
        (first,) = drafter.propose([Frontier(0, tree, np.array([0]), 3)]).candidates
        tokens = first.tokens[0, :2]
        tree = tree.extend(tokens, np.zeros(2, dtype=np.int64), first.path_logp[0, :2])
        (second,) = drafter.propose([Frontier(0, tree, np.array([1, 2]), 3)]).candidates
        tree = tree.extend(second.tokens[:, 0], np.array([1, 2]), second.path_logp[:, 0])
        (third,) = drafter.propose([Frontier(0, tree, np.array([4]), 3)]).candidates
        laws = {(): first.law(0)}
        laws |= {(int(token),): second.law(row) for row, token in enumerate(tokens)}
        laws[tuple(tree.tokens[[2, 4]].tolist())] = third.law(0)
        skip = drafter._slots[0].skip
        assert target.runner.cache.staged == [0]
        target.close(0)
    part = without_layers(model, skip)
    for path, law in laws.items():
        with torch.inference_mode():
            read = model(input_ids=torch.tensor([text[:-1]]), use_cache=True)
            known = {cache_keyword(part): read[cache_keyword(model)], "use_cache": True}
            expected = part(input_ids=torch.tensor([[text[-1], *path]]), **known).logits[0, -1][:vocab]
        assert np.allclose(law, torch.softmax(expected.double(), -1).numpy(), atol=1e-5)


class Whole(ConfLayersDrafter):
    """Leaves nothing out."""

    def _choose(self, own: Any) -> int:
        own.skip = ()
        return 0


def rounds(model: Any, drafter: Any, prompts: Sequence[Any], backend: Any = None, graphs: Any = None) -> list[Any]:
    from talon_core import Engine

    target = HFTarget(model, backend or sdpa(), graphs=graphs)
    engine = Engine(target, Match(), Talon(budget=12, top_k=3, mu=0.1), drafter(target), allocator=None)
    sequences = [engine.submit(Request(prompt, 20)) for prompt in prompts]
    while not all(one.finished for one in sequences):
        engine.step()
    assert [one.error for one in sequences] == [None] * len(sequences)
    return sequences


PROMPTS = [np.array([5, 9, 3]), np.array([1, 7, 5, 5, 2, 8, 10, 3, 1]), np.array([4])]


@pytest.mark.parametrize("recorded", [None, False, True])
def test_with_all_layers_its_best_chain_is_always_accepted(recorded: bool | None) -> None:
    """So each pass sees exactly what the target will: its rows, the tree's, and nothing else."""
    model = deep_model()
    backend = None if recorded is None else TapedBackend(PlainDevice())
    graphs = TapeRecorder if recorded else None
    sequences = rounds(model, lambda target: Whole(ConfLayers(), target), PROMPTS, backend, graphs)
    for one in sequences:
        for round_ in one.rounds[:-1]:
            best = [0]
            while (children := np.flatnonzero(round_.tree.parents == best[-1])).size:
                best.append(int(children[np.argmax(round_.tree.path_logp[children])]))
            assert round_.path.tolist() == best


@pytest.mark.parametrize("recorded", [None, True])
def test_the_text_is_the_targets_and_the_layers_follow_it(recorded: bool | None) -> None:
    model, seen = deep_model(), set()

    class Watched(ConfLayersDrafter):
        def _choose(self, own: Any) -> int:
            passes = super()._choose(own)
            seen.add(own.skip)
            return passes

    options = ConfLayers(context=6, every=5)
    backend = None if recorded is None else TapedBackend(PlainDevice())
    graphs = TapeRecorder if recorded else None
    together = rounds(model, lambda target: Watched(options, target), PROMPTS, backend, graphs)
    for prompt, one in zip(PROMPTS, together, strict=True):
        (plain,) = Decoder(HFTarget(model, sdpa()), Match(), None, None).run_all([Request(prompt, 20)])
        assert one.token_ids == plain.token_ids
    assert len(seen) > 1
    assert all(0 not in skip and 8 not in skip for skip in seen)


def test_it_keeps_the_contract_while_its_layers_change() -> None:
    model = deep_model(layers=7, vocab=5)
    check_drafter(ConfLayers(context=4, every=3), HFTarget(model, sdpa()), max_examples=4)


def test_what_is_found_is_taken_only_where_it_agrees_more_often() -> None:
    model = deep_model()
    target = HFTarget(model, sdpa())
    drafter = ConfLayers(context=8, every=8).open(target)
    assert isinstance(drafter, ConfLayersDrafter)
    taken = []
    with target.session():
        for seed in range(6):
            text = np.random.default_rng(seed).integers(0, 11, 8)
            target.open(0, 30)
            drafter.open(0, text, 30)
            target.read({0: text[:-1]})
            drafter.propose([Frontier(0, TokenTree.root(int(text[-1])), np.array([0]), 1)])
            skip = drafter._slots[0].skip
            target.close(0)
            taken.append((text, skip))
    second = every_second(9)
    for text, skip in taken:
        with torch.inference_mode():
            ids = torch.tensor([text.tolist()])
            with Confidence(decoder_layers(model), model).measured() as scores:
                truth = model(input_ids=ids, use_cache=False).logits.argmax(-1)
            found = tuple(place + 1 for place in skipped(scores, 0.4, 0.45))
            agree = [
                int((without_layers(model, way)(input_ids=ids, use_cache=False).logits.argmax(-1) == truth).sum())
                for way in (found, second)
            ]
        assert skip == (found if agree[0] > agree[1] else second)
    assert len({skip for _, skip in taken}) > 1


def test_rows_that_another_pass_may_have_written_to_are_not_counted_again() -> None:
    cache = TreeCache()
    cache.open(0, 9)
    before = cache.passes
    cache.stage([2])
    cache.staged_now([2])
    cache.committed({0: 0})
    cache.restage({0: 2}, before + 1)
    assert cache.staged == [2]
    with pytest.raises(RuntimeError, match="another pass over trees has been run since"):
        cache.restage({0: 2}, before)
    cache.restage({}, before)


def test_two_of_them_in_one_hybrid_are_refused_in_words() -> None:
    spec = HybridSpec("conflayers+conflayers[every=5]")
    decoder = decoder_for_model(deep_model(), None, Parts(spec, Chain(length=3)))
    with pytest.raises(PluginError, match="another pass over trees has been run since"):
        decoder.run_all([Request(PROMPTS[1], 9)])


def test_models_that_it_cannot_skip_layers_of_are_refused() -> None:
    with pytest.raises(ValueError, match="has 2 layers; drafter 'conflayers' leaves out some"):
        ConfLayers().open(HFTarget(deep_model(layers=2), sdpa()))
    with pytest.raises(ValueError, match="drafts for transformers models, not for a TableTarget"):
        ConfLayers().open(TableTarget(np.zeros((2, 2))))
    layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
    with pytest.raises(ValueError, match="Linear has layers without a part called self_attn, attn, attention or"):
        Confidence(layers, nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"least": 0.5}, "least must be at most most"),
        ({"most": 1.5}, "most"),
        ({"context": 1}, "context"),
        ({"every": 0}, "every"),
    ],
)
def test_senseless_options_are_refused_by_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ConfLayers(**options)
