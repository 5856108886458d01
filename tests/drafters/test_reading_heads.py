"""Rows whose answers nobody wants leave the keys and values that a whole step leaves, and cost no more than these."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config

from talon_drafters.eagle.network import EagleHead
from talon_drafters.eagle3.network import Eagle3Config, Eagle3Head
from talon_drafters.heads.layers import FeatureHead

WIDTH, ROWS = 48, 7
SHAPE = {
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 97,
}
LLAMA, QWEN3 = LlamaConfig(**SHAPE), Qwen3Config(**SHAPE, attention_bias=False, mlp_bias=False)
HEADS = {
    "eagle3": lambda: Eagle3Head(Eagle3Config(LLAMA, WIDTH, 97)),
    "eagle3, three layers": lambda: Eagle3Head(Eagle3Config(LLAMA, WIDTH, 97, num_layers=3)),
    "eagle3, normed keys": lambda: Eagle3Head(Eagle3Config(QWEN3, WIDTH, 97, norm_before_residual=True)),
    "eagle3, two layers of normed keys": lambda: Eagle3Head(Eagle3Config(QWEN3, WIDTH, 97, num_layers=2)),
    "eagle": lambda: EagleHead(LLAMA, 1, True, None),
    "eagle, two layers": lambda: EagleHead(LLAMA, 2, False, None),
}


class Cache:
    """The keys and values of each layer, as a step leaves them; each row sees all rows, which tells them apart."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        self.asked: list[int] = []

    def keep(self, layer: int, key: Tensor, value: Tensor) -> None:
        self.kept[layer] = key, value

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.asked.append(layer)
        self.keep(layer, key, value)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)


@pytest.mark.parametrize("name", HEADS)
@torch.inference_mode()
def test_what_is_read_leaves_the_bits_of_a_whole_step(name: str) -> None:
    torch.manual_seed(3)
    head: FeatureHead = HEADS[name]()
    layers = len(head.layers)
    embeddings, states = torch.randn(2, 2, ROWS, WIDTH)
    positions = torch.arange(5, 5 + ROWS).expand(2, -1)
    whole, read = Cache(), Cache()
    head(embeddings, states, positions, whole.attend)
    head.read(embeddings, states, positions, read.attend, read.keep)
    assert whole.asked == [*range(layers)]
    assert read.asked == [*range(layers - 1)]  # of the last layer nobody wants the answer
    assert read.kept.keys() == whole.kept.keys()
    for layer, (key, value) in whole.kept.items():
        assert torch.equal(read.kept[layer][0], key)
        assert torch.equal(read.kept[layer][1], value)


@torch.inference_mode()
def test_a_head_that_says_nothing_of_reading_goes_through_a_whole_step() -> None:
    class Plain(Eagle3Head):
        read = FeatureHead.read

    torch.manual_seed(3)
    head, given = Plain(Eagle3Config(LLAMA, WIDTH, 97)), torch.randn(2, 1, ROWS, WIDTH)
    whole, read = Cache(), Cache()
    head(*given, torch.arange(ROWS)[None], whole.attend)
    head.read(*given, torch.arange(ROWS)[None], read.attend, read.keep)
    assert read.asked == whole.asked == [0]
    assert torch.equal(read.kept[0][0], whole.kept[0][0])


@pytest.mark.parametrize("name", HEADS)
@torch.inference_mode()
def test_what_is_read_goes_through_no_more_than_keys_and_values_of_the_last_layer(name: str) -> None:
    head: FeatureHead = HEADS[name]()
    *_, last = head.layers
    ran: list[str] = []
    for part, module in last.named_modules():
        module.register_forward_hook(lambda _, __, ___, part=part: ran.append(part))
    cache = Cache()
    head.read(*torch.randn(2, 1, ROWS, WIDTH), torch.arange(ROWS)[None], cache.attend, cache.keep)
    assert {"self_attn.k_proj", "self_attn.v_proj"} <= {*ran}
    assert not [part for part in ran if part.startswith("mlp") or part in ("self_attn.q_proj", "self_attn.o_proj")]
