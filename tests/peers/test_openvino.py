"""OpenVINO GenAI, asked as it wants to be asked; and really, where a converted model is at hand.

Its tools do not go with the transformers that TALON is tested with, so a model is converted elsewhere:
`TALON_TEST_OPENVINO` names the folder of the embedded model, `TALON_TEST_OPENVINO_HEAD` that of its EAGLE-3 head.
"""

import os
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from talon_core.peer import PeerSetting
from talon_core.peers import OpenVino
from talon_core.request import Request
from talon_core.sampling import Sampling

MODEL, HEAD = (os.environ.get(f"TALON_TEST_OPENVINO{part}", "") for part in ("", "_HEAD"))
XML = """<net><layers>
<layer type="Const"><data element_type="{kind}" size="900"/></layer>
<layer type="Const"><data element_type="i64" size="8"/></layer>
<layer type="Add"/>
</layers></net>"""


class Asked:
    """What stands in for `openvino_genai`: it notes what it is asked."""

    def __init__(self):
        self.opened, self.configs = [], []
        self.module = ModuleType("openvino_genai")
        self.module.SchedulerConfig = lambda: SimpleNamespace(enable_prefix_caching=True, max_num_batched_tokens=50)
        self.module.draft_model = lambda path, device, **options: ("draft", path, options)
        self.module.GenerationConfig = lambda **given: SimpleNamespace(**given)
        self.module.LLMPipeline = self.pipeline

    def pipeline(self, path, device, **options):
        self.opened.append((path, device, options))
        if "broken" in path:
            raise RuntimeError("Exception from somewhere:\nmore")
        return SimpleNamespace(generate=self.generate)

    def generate(self, ids, config):
        self.configs.append(config)
        metrics = SimpleNamespace(get_num_accepted_tokens=lambda: 2)
        return SimpleNamespace(
            tokens=[[1, 2, 3, 4, 5]], extended_perf_metrics=metrics if "draft" in str(self.opened) else None
        )


@pytest.fixture
def asked(monkeypatch):
    found = Asked()
    monkeypatch.setitem(sys.modules, "openvino_genai", found.module)
    openvino = ModuleType("openvino")
    openvino.Tensor = np.asarray
    monkeypatch.setitem(sys.modules, "openvino", openvino)
    return found


@pytest.fixture
def folder(tmp_path):
    def make(name, kind="f32"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "openvino_model.xml").write_text(XML.format(kind=kind))
        return str(tmp_path / name)

    return make


SETTING = PeerSetting(None, None, "tiny", frozenset([2]), 64, 3)
REQUEST = Request(np.arange(4), 5, eos=frozenset([2]))


def test_nothing_is_remembered_between_prompts_and_float32_stays_float32(asked, folder):
    engine = OpenVino(path=folder("model")).open(SETTING)
    [(_, device, options)] = asked.opened
    assert device == "CPU"
    scheduler = options.pop("scheduler_config")
    assert scheduler.enable_prefix_caching is False
    assert scheduler.max_num_batched_tokens == SETTING.room  # the longest prompt is read at once
    assert options == {"INFERENCE_NUM_THREADS": 3, "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    assert (engine.dtype, engine.threads, engine.device) == ("float32", 3, "cpu")
    answer = engine.decode(REQUEST)
    assert list(answer.token_ids) == [1, 2, 3, 4, 5]
    assert answer.target_passes == 5
    [config] = asked.configs
    assert vars(config) == {
        "max_new_tokens": 5,
        "do_sample": False,
        "apply_chat_template": False,
        "stop_token_ids": {2},
    }


def test_a_head_drafts_a_chain_or_a_tree(asked, folder):
    head = folder("head")
    chain = OpenVino(path=folder("model"), head=head, tokens=4).open(SETTING)
    assert chain.decode(REQUEST).target_passes == 3  # two of five tokens were drafted
    tree = OpenVino(path=folder("other"), head=head, tokens=8, depth=4, branching=2).open(SETTING)
    tree.decode(REQUEST)
    assert [options["draft_model"][1] for _, _, options in asked.opened] == [head, head]
    shapes = [{name: vars(one).get(name) for name in ("num_assistant_tokens", "tree_depth")} for one in asked.configs]
    assert shapes == [
        {"num_assistant_tokens": 4, "tree_depth": None},
        {"num_assistant_tokens": 8, "tree_depth": 4},
    ]
    assert asked.configs[1].branching_factor == 2


def test_a_quantised_model_is_told_from_a_float32_one(asked, folder):
    engine = OpenVino(path=folder("model", "i8")).open(SETTING)
    assert engine.dtype == "i8"
    assert "KV_CACHE_PRECISION" not in asked.opened[0][2]


def test_what_it_cannot_do_is_refused(asked, folder):
    with pytest.raises(ValueError, match=r"OpenVINO cannot open '.*broken': Exception from somewhere:"):
        OpenVino(path=folder("broken")).open(SETTING)
    engine = OpenVino(path=folder("model")).open(SETTING)
    with pytest.raises(ValueError, match="the model's scores are processed"):
        engine.decode(Request(np.arange(4), 5, Sampling(False, (lambda ids, scores: scores,))))


@pytest.mark.models
@pytest.mark.skipif(not MODEL, reason="TALON_TEST_OPENVINO names no converted model")
@pytest.mark.parametrize("shape", ["plain", "chain", "tree"])
def test_a_converted_model_says_what_the_model_says(shape):
    pytest.importorskip("openvino_genai", reason="the extra openvino is not installed")
    if shape != "plain" and not HEAD:
        pytest.skip("TALON_TEST_OPENVINO_HEAD names no converted head")
    from talon_core.hf.generated import generated
    from talon_core.models.loading import load_model

    model, tokenizer = load_model("smollm2-135m", dequantize=True)
    ids = np.array(tokenizer("The capital of France is Paris. The capital of")["input_ids"])
    setting = PeerSetting(model, tokenizer, "smollm2-135m", frozenset([2]), 64, torch.get_num_threads())
    options = {"plain": {}, "chain": {"head": HEAD}, "tree": {"head": HEAD, "tokens": 8, "depth": 4}}[shape]
    request = Request(ids, 24, eos=setting.eos)
    answer = OpenVino(path=MODEL, **options).open(setting).decode(request)
    assert list(answer.token_ids) == generated(model, request)
    assert (answer.target_passes < 24) is (shape != "plain")


@pytest.mark.models
@pytest.mark.skipif(not HEAD, reason="TALON_TEST_OPENVINO_HEAD names no converted head")
def test_a_head_is_of_use_after_a_prompt_of_more_tokens_than_openvino_reads_at_once():
    pytest.importorskip("openvino_genai", reason="the extra openvino is not installed")
    from talon_core.models.loading import load_model

    model, tokenizer = load_model("smollm2-135m", dequantize=True)
    text = np.array(tokenizer("The capital of France is Paris. " * 60)["input_ids"])
    setting = PeerSetting(model, tokenizer, "smollm2-135m", frozenset(), 400, torch.get_num_threads())
    decode = OpenVino(path=MODEL, head=HEAD, tokens=8, depth=4).open(setting).decode
    passes = [decode(Request(text[-length:], 16)).target_passes for length in (256, 257, 300)]
    assert max(passes) < 16
