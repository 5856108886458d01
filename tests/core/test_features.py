"""What a drafter like EAGLE-3 needs: the target's hidden states, for each token that was committed, in order."""

import copy
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from talon_core import DrafterSpec
from talon_core.candidates import Candidates
from talon_core.decoding.loading import decoder_for_model
from talon_core.drafter import FINAL_STATE, Drafter, Proposed
from talon_core.plugins.parts import Parts
from talon_tests.tiny_models import ARCHITECTURES, tiny_model

HIDDEN = 48


class Recorder(Drafter):
    """Proposes what the target says next, or sometimes something wrong; keeps every feature it is given."""

    def __init__(self, truth):
        self.truth = truth
        self.ids, self.features, self.calls = [], [], []

    def open(self, slot, prompt, room):
        self.ids = prompt.tolist()
        self.features = []

    def read(self, parts):
        (part,) = parts.values()
        self.calls.append(("read", part))
        self.features.append(part.features)

    def propose(self, frontiers):
        (one,) = frontiers
        tokens = []
        for node in one.nodes.tolist():
            ids = [*self.ids, *one.tree.tokens[one.tree.path(node)[1:]].tolist()]
            best = self.oracle(ids)
            wrong = len(ids) % 7 < 3
            tokens.append([(best + 1) % 97, (best + 2) % 97] if wrong else [best, (best + 1) % 97])
        logp = np.tile(np.log([0.6, 0.3]), (len(tokens), 1))
        path_logp = one.tree.path_logp[one.nodes][:, None] + logp
        width = min(2, one.width)
        return Proposed([Candidates(one.nodes, np.array(tokens)[:, :width], logp[:, :width], path_logp[:, :width])])

    def oracle(self, ids):
        return self.truth[len(ids)] if ids == self.truth[: len(ids)] else 5

    def commit(self, committed):
        (one,) = committed.values()
        self.calls.append(("commit", one))
        self.ids += one.tokens.tolist()
        self.features.append(one.features)


@attrs.frozen
class Recording(DrafterSpec):
    """Asks for some hidden states, and opens a recorder that knows what the target will say."""

    name = "recording"
    recorder: Recorder
    wanted: tuple[int, ...]
    layers_told: list[int] = attrs.field(factory=list)

    def features(self, num_layers):
        self.layers_told.append(num_layers)
        return self.wanted

    def open(self, target):
        return self.recorder


def hidden_states(model: Any, ids: list[int]) -> list[torch.Tensor]:
    """What enters the first layer and what each layer returns, shape `(tokens, hidden)`, by the plain model."""
    last: list[torch.Tensor] = []
    layers = next(module for module in model.modules() if isinstance(module, torch.nn.ModuleList))
    handle = layers[-1].register_forward_hook(
        lambda _module, _args, out: last.append(out[0] if isinstance(out, tuple) else out)
    )
    with torch.inference_mode():
        out = model(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    handle.remove()
    # transformers' own last state comes after the final norm, which is none of the layers'
    return [*(state[0] for state in out.hidden_states[:-1]), last[0][0]]


def check_features(model: Any, ids: list[int], wanted: tuple[int, ...], told: torch.Tensor) -> None:
    """Told are the states of the first tokens of `ids`, with at most twice the plain float32 model's error.

    The truth is the model in float64; one rounding step is allowed on top.
    """
    low = hidden_states(model, ids)
    exact = hidden_states(copy.deepcopy(model).double(), ids)
    assert told.shape[1] == len(wanted) * HIDDEN
    for layer, part in zip(wanted, told.split(HIDDEN, dim=1), strict=True):
        truth = exact[layer][: len(told)]
        allowed = 2 * (low[layer] - exact[layer]).abs().max() + torch.finfo(torch.float32).eps * truth.abs().max()
        assert (part - truth).abs().max() <= allowed, layer


def plain(model: Any, prompt: list[int], tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0, max_new_tokens=tokens
    )
    return [int(token) for token in out[0]]


def run(architecture, wanted, policy="chain:length=3", prompt_length=9, tokens=20):
    model = tiny_model(architecture)
    prompt = torch.randint(3, 97, (prompt_length,), generator=torch.Generator().manual_seed(1)).tolist()
    recorder = Recorder(plain(model, prompt, tokens))
    spec = Recording(recorder, wanted)
    decoder = decoder_for_model(model, None, Parts(spec, policy))
    result = decoder.generate(np.array(prompt), max_new_tokens=tokens)
    assert [*prompt, *result.token_ids] == recorder.truth
    return model, spec, recorder, result


@pytest.mark.parametrize("policy", ["chain:length=3", "static:shape=0;1;0.0;0.1;1.0"])
@pytest.mark.parametrize("wanted", [(0, 2, 4), (3,), (4, 1)])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_features_are_the_hidden_states_of_every_committed_token(architecture, wanted, policy):
    model, spec, recorder, result = run(architecture, wanted, policy)
    assert spec.layers_told == [4]
    (first, part), *commits = recorder.calls
    assert (first, part.start, part.count, part.end) == ("read", 0, 9 - 1, 9 - 1)
    assert part.features.shape == (part.count, len(wanted) * HIDDEN)
    assert part.features.dtype == torch.float32
    for _, one in commits:
        assert one.features.shape == (len(one.tokens), len(wanted) * HIDDEN)
    assert len(commits) == result.stats.rounds - 1
    assert any(len(one.tokens) > 2 for _, one in commits)
    assert any(len(one.tokens) == 1 for _, one in commits), "nothing was ever rejected"
    # a row for each token but the last root: its features come with the round that verifies it
    told = torch.cat(recorder.features)
    assert len(told) == len(recorder.ids) - 1
    check_features(model, recorder.ids, wanted, told)


@pytest.mark.parametrize("architecture", [*ARCHITECTURES])
def test_the_final_state_is_what_enters_the_lm_head(architecture):
    model, _, recorder, _ = run(architecture, (FINAL_STATE,), tokens=8)
    told = torch.cat(recorder.features)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([recorder.ids]), use_cache=False).logits[0, : len(told)]
        got = model.get_output_embeddings()(told)
    assert len(told) > 9
    # gemma2's cap and the scales of granite and cohere come after the head, and keep the order of tokens
    assert torch.equal(got.argmax(-1), logits.argmax(-1))
    if architecture not in ("gemma2", "cohere", "granite"):
        torch.testing.assert_close(got, logits, rtol=1e-4, atol=1e-4)


def test_states_are_told_apart():
    states = hidden_states(tiny_model("llama"), [5, 6, 7])
    for one in range(5):
        for other in range(one):
            assert not torch.allclose(states[one], states[other], rtol=0.1)


def test_of_a_prompt_of_one_token_nothing_is_read():
    _, _, recorder, _ = run("llama", (1, 3), prompt_length=1)
    first, committed = recorder.calls[0]
    assert first == "commit"
    assert committed.features.shape == (len(committed.tokens), 2 * HIDDEN)


def test_long_prompts_are_told_whole(monkeypatch):
    monkeypatch.setattr("talon_core.runtime.executor.HOST_PROMPT_TOKENS", 7)
    model, _, recorder, _ = run("gemma3", (2,), prompt_length=40, tokens=3)
    assert len(recorder.features[0]) == 39
    check_features(model, recorder.ids[:40], (2,), recorder.features[0])


def test_who_asks_for_nothing_gets_nothing():
    _, _, recorder, _ = run("llama", ())
    assert all(features is None for features in recorder.features)


def test_nothing_is_left_on_the_model():
    model, *_ = run("llama", (0, 4))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_without_a_policy_no_features_are_computed():
    model = tiny_model("llama")
    spec = Recording(Recorder([]), (0, 2))
    decoder = decoder_for_model(model, None, Parts(spec, None))
    assert decoder.target.runner.features == ()
    assert spec.layers_told == []


@pytest.mark.parametrize("wanted", [5, -2, 99])
def test_a_hidden_state_that_does_not_exist_is_refused(wanted):
    model = tiny_model("llama")
    spec = Recording(Recorder([]), (1, wanted))
    with pytest.raises(ValueError, match=rf"there is no hidden state {wanted}; the model has 0 to 4"):
        decoder_for_model(model, None, Parts(spec, "chain"))
