"""A network's cache goes under the name that its forward has for it, which transformers changed in 5.24."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import talon_core
from talon_core.hf.arguments import check_for_decoder
from talon_core.runtime.cache_keyword import cache_keyword
from talon_tests.tiny_models import SMALL

PROMPT = torch.tensor([[5, 9, 33, 9, 33, 41, 5, 9]])


class Before(nn.Module):
    def forward(self, input_ids: Tensor, past_key_values: Any = None, **options: Any) -> None:
        raise NotImplementedError


class Since(nn.Module):
    def forward(self, input_ids: Tensor, cache: Any = None, **options: Any) -> None:
        raise NotImplementedError


class Wrapper(nn.Module):
    """Hands on whatever it is given, as peft's do."""

    def __init__(self, within: nn.Module) -> None:
        super().__init__()
        self.within = within

    def forward(self, *args: Any, **options: Any) -> Any:
        return self.within(*args, **options)


@pytest.mark.parametrize(("network", "keyword"), [(Before(), "past_key_values"), (Since(), "cache")])
def test_the_name_is_that_of_the_forward_also_behind_wrappers(network: nn.Module, keyword: str) -> None:
    assert cache_keyword(network) == keyword
    assert cache_keyword(Wrapper(Wrapper(network))) == keyword


def test_a_subclass_that_hands_everything_on_has_the_name_of_its_class() -> None:
    class Doubled(Since):
        def forward(self, *args: Any, **options: Any) -> None:
            super().forward(*args, **options)

    assert cache_keyword(Doubled()) == "cache"


class NewName(LlamaForCausalLM):
    """Calls its cache `cache`, and knows the old name no more, as its class will from transformers 5.40 on."""

    def forward(self, input_ids: Any = None, cache: Any = None, **options: Any) -> Any:
        if cache is not None:
            options[cache_keyword(self.model)] = cache
        return super().forward(input_ids, **options)


class Counted(NewName):
    """Counts the passes that were given no cache under the new name."""

    without = 0

    def forward(self, input_ids: Any = None, cache: Any = None, **options: Any) -> Any:
        Counted.without += cache is None  # on the class, as drafters may run a copy
        return super().forward(input_ids, cache, **options)


@pytest.mark.parametrize("drafter", ["ngram", "conflayers"])
def test_a_model_with_the_new_name_decodes_as_by_itself(drafter: str) -> None:
    torch.manual_seed(0)
    model: Any = Counted(LlamaConfig(**SMALL)).eval()
    options = {"attention_mask": torch.ones_like(PROMPT), "pad_token_id": 0}
    plain = model.generate(PROMPT, max_new_tokens=12, do_sample=False, **options)[0, 8:].tolist()
    decoder = talon_core.load(model, drafter=drafter, policy="talon:budget=6,top_k=2")
    Counted.without = 0
    assert decoder.generate(PROMPT[0], max_new_tokens=12).token_ids == plain
    assert Counted.without == 0


@pytest.mark.parametrize("keyword", ["past_key_values", "cache"])
def test_a_cache_of_ones_own_is_refused_under_either_name(keyword: str) -> None:
    with pytest.raises(ValueError, match=f"^{keyword} is of class object; TALON has a cache of its own"):
        check_for_decoder({keyword: object()})
