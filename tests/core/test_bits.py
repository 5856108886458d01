"""In how many bits a model keeps its weights, and that policies are told of it and of the drafter."""

from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch

from talon_core import Engine, Request, TableTarget
from talon_core.hf.bits import weight_bits
from talon_drafters import Ngram
from talon_strategies import Chain, Match


class Float8WeightOnlyConfig:
    """Called as torchao's."""


def model_of(dtype=torch.bfloat16, **config):
    return SimpleNamespace(dtype=dtype, config=SimpleNamespace(**config))


@pytest.mark.parametrize(
    ("given", "bits"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}, 4),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        (SimpleNamespace(_load_in_4bit=False, _load_in_8bit=True), 8),
        ({"quant_method": "gptq", "bits": 4}, 4),
        (SimpleNamespace(quant_method="awq", bits=4), 4),
        ({"quant_method": "quanto", "weights": "int2"}, 2),
        ({"quant_method": "torchao"}, None),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}}, 8),
        ({"quant_type": {"default": {"_type": "Int8DynamicActivationInt4WeightConfig"}}}, 4),
        (SimpleNamespace(quant_type=Float8WeightOnlyConfig()), 8),
        ({"quant_type": "int4_weight_only"}, 4),
        ({"quant_type": {"default": {"_type": "ModuleFqnToConfig"}}}, None),
        ({"quant_method": "eetq", "weights": "something"}, None),
    ],
)
def test_a_quantised_model_says_it_in_its_configuration(given, bits):
    assert weight_bits(model_of(quantization_config=given)) == bits


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 32), (torch.float16, 16), (torch.bfloat16, 16)])
def test_of_any_other_it_is_that_of_its_numbers(dtype, bits):
    assert weight_bits(model_of(dtype)) == bits
    assert weight_bits(model_of(dtype, quantization_config=None)) == bits


def test_a_configuration_of_bitsandbytes_is_read():
    config = pytest.importorskip("transformers").BitsAndBytesConfig
    assert weight_bits(model_of(quantization_config=config(load_in_4bit=True))) == 4
    assert weight_bits(model_of(quantization_config=config(load_in_8bit=True))) == 8


@attrs.frozen
class Listens(Chain):
    """Notes what it is told of the sequence."""

    name = "listens"
    told: list = attrs.field(factory=list)

    def begin(self, sequence):
        self.told.append(sequence)
        return self


def test_a_policy_is_told_of_the_drafter_and_of_the_weights():
    target, policy = TableTarget(np.zeros((3, 3))), Listens()
    request = Request(np.array([0]), 2)
    Engine(target, Match(), policy, Ngram().open(target), Ngram()).policy_for(request)
    target.weight_bits = 4
    Engine(target, Match(), policy, Ngram().open(target)).policy_for(request)
    assert [(one.drafter, one.weight_bits) for one in policy.told] == [("ngram", None), ("", 4)]
