"""economize with the EAGLE-3 head that TALON ships, on the embedded model."""

from pathlib import Path

import numpy as np
import pytest
import torch

import talon_drafters
from talon_core.peer import PeerSetting
from talon_core.peers import Economize
from talon_core.request import Request
from talon_core.sampling import Sampling

HEAD = Path(talon_drafters.__file__).parent / "eagle3/shipped/smollm2-135m"
TOKENS = 16
pytestmark = pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")  # economize's own call


@pytest.fixture(scope="module")
def setting():
    from talon_core.models.loading import load_model

    model, tokenizer = load_model("smollm2-135m", dequantize=True)
    return PeerSetting(model, tokenizer, "smollm2-135m", frozenset([2]), 64, torch.get_num_threads())


@pytest.fixture(scope="module")
def engine(setting):
    pytest.importorskip("economize", reason="the extra economize is not installed")
    opened = Economize(head=str(HEAD)).open(setting)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def ids(setting):
    return np.array(setting.tokenizer("The capital of France is Paris. The capital of")["input_ids"])


@pytest.mark.models
@pytest.mark.slow
def test_our_head_is_read_and_the_output_is_the_models_own(engine, setting, ids):
    from talon_core.hf.generated import generated

    request = Request(ids, TOKENS, eos=setting.eos)
    answer = engine.decode(request)
    assert list(answer.token_ids) == generated(setting.model, request)
    assert answer.target_passes < len(answer.token_ids)  # the head guesses right now and then
    assert answer.draft_passes > 0
    assert (engine.dtype, engine.device) == ("float32", "cpu")


@pytest.mark.models
@pytest.mark.matrix
def test_a_seed_draws_the_same_tokens_again(engine, setting, ids):
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper

    def drawn(seed, *more):
        sampling = Sampling(True, (TemperatureLogitsWarper(1.5), *more))
        return list(engine.decode(Request(ids, 8, sampling, setting.eos, seed=seed)).token_ids)

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    with pytest.raises(ValueError, match="top_k is 7, which economize cannot do"):
        drawn(3, TopKLogitsWarper(7))


@pytest.mark.models
def test_closing_leaves_the_model_as_it_was(setting, ids):
    pytest.importorskip("economize", reason="the extra economize is not installed")
    before = [(name, id(module), len(module._forward_pre_hooks)) for name, module in setting.model.named_modules()]
    opened = Economize(head=str(HEAD)).open(setting)
    opened.decode(Request(ids, 4, eos=setting.eos))
    opened.close()
    after = [(name, id(module), len(module._forward_pre_hooks)) for name, module in setting.model.named_modules()]
    assert after == before


@pytest.mark.models
def test_a_folder_that_holds_no_head_is_refused(setting, tmp_path):
    pytest.importorskip("economize", reason="the extra economize is not installed")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=f"economize cannot use the head in '{tmp_path}'"):
        Economize(head=str(tmp_path)).open(setting)
