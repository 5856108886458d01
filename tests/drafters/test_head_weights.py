"""In which form the matrices of heads are kept."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from talon_core.decoding.decoder import Decoder
from talon_core.plugins.parts import Parts
from talon_core.runtime.blocks import BlockLinear
from talon_drafters import Eagle3
from talon_drafters.heads.weights import keep_weights


class Head(nn.Module):
    """Matrices of several sizes, and what must be left alone."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(64, 48, bias=True)
        self.odd = nn.Linear(40, 8, bias=False)  # no whole blocks
        self.inner = nn.Sequential(nn.Linear(32, 16, bias=False))
        self.embed_tokens = nn.Embedding(10, 64)
        self.norm = nn.LayerNorm(64)


def target_with(*layers: nn.Module) -> Any:
    return SimpleNamespace(model=nn.Sequential(*layers))


def in_blocks() -> BlockLinear:
    owner = nn.Sequential(nn.Linear(32, 4, bias=False))
    assert keep_weights(owner, "q8_0", target_with()) == "q8_0"
    (layer,) = owner
    assert isinstance(layer, BlockLinear)
    return layer


def test_matrices_are_put_into_blocks_and_nothing_else_is() -> None:
    head, before = Head(), Head()
    before.load_state_dict(head.state_dict())
    x = torch.randn(5, 64)
    assert keep_weights(head, "q8_0", target_with()) == "q8_0"
    assert isinstance(head.wide, BlockLinear)
    assert isinstance(head.inner[0], BlockLinear)
    assert type(head.odd) is nn.Linear
    assert type(head.embed_tokens) is nn.Embedding
    assert head.wide.bias is not None
    assert torch.equal(head.wide.bias, before.wide.bias)
    kept, given = head.wide.numbers(), before.wide.weight.detach()
    largest = given.reshape(48, 2, 32).abs().amax(-1, keepdim=True)
    # half a step of 127, and what the scale loses as it has 11 bits
    assert ((kept - given).reshape(48, 2, 32).abs() <= largest * (0.5 / 127 + 2**-11) * 1.001).all()
    assert not torch.equal(kept, given)
    torch.testing.assert_close(head.wide(x), nn.functional.linear(x, kept, before.wide.bias))
    assert head.wide.weight.dtype == torch.float32


def test_left_to_itself_a_head_is_kept_as_the_target_is() -> None:
    plain, blocks = target_with(nn.Linear(32, 4)), target_with(nn.Linear(32, 4), in_blocks())
    assert keep_weights(Head(), "auto", plain) == "stored"
    assert keep_weights(Head(), "auto", blocks) == "q8_0"
    head = Head()
    assert keep_weights(head, "stored", blocks) == "stored"
    assert not any(isinstance(layer, BlockLinear) for layer in head.modules())


def test_where_no_matrix_fits_blocks_are_refused_to_those_who_ask_for_them() -> None:
    odd, blocks = nn.Sequential(nn.Linear(40, 8)), target_with(in_blocks())
    assert keep_weights(odd, "auto", blocks) == "stored"
    with pytest.raises(ValueError, match=r"weights is 'q8_0', and the head has no matrix .* take weights=stored"):
        keep_weights(odd, "q8_0", blocks)


def test_other_forms_are_refused() -> None:
    with pytest.raises(ValueError, match="'weights' must be in"):
        Eagle3(weights="q4")


@pytest.mark.models
@pytest.mark.slow
def test_a_head_in_blocks_guesses_as_well(shared_target: Any, smollm: Any, prompts: list[str], answers: Any) -> None:
    """Of the shipped head: tokens a pass of the same trees, over the same texts."""

    def a_pass(form: str) -> float:
        decoder: Decoder = shared_target(*smollm, Parts(f"eagle3:weights={form}", "talon:budget=6"))
        decoder.engine.allocator = None
        results = decoder.generate([*prompts], max_new_tokens=32)
        assert decoder.engine.parts.drafter.describe()["weights"] == form
        texts[form] = [result.token_ids for result in results]
        return sum(map(len, texts[form])) / sum(result.stats.target_passes for result in results)

    texts: dict[str, list[list[int]]] = {}
    stored, blocks = a_pass("stored"), a_pass("q8_0")
    assert texts["stored"] == texts["q8_0"]
    assert blocks > 0.97 * stored
