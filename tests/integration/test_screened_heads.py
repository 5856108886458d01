"""The most likely tokens of the embedded models' heads by a screen: those of the product, of which few are computed."""

import pytest
import torch

from talon_core.decoding.loading import decoder_for_model
from talon_core.plugins.parts import Parts
from talon_kernels.likeliest_tokens import Screen
from talon_kernels.native import load
from talon_kernels.skinny_linear import skinny_linear
from talon_kernels.stored import address_of, kind_of, shape_of

pytestmark = [pytest.mark.models, pytest.mark.slow]

COMPUTED = 0.001
"""Of all products with the head, so many are computed in the mean."""


@pytest.mark.parametrize("name", ["smollm", "gemma"])
def test_fewer_than_one_product_in_a_thousand_is_computed(request, prompts, name):
    model, tokenizer = request.getfixturevalue(name)
    library, head = load(), model.get_output_embeddings()
    if library is None:
        pytest.skip("no native kernels here")
    states = []
    decoder = decoder_for_model(model, tokenizer, Parts("ngram", "chain:length=3"))
    # the decoder has tried the model on random tokens, whose states are like those of no text
    hook = head.register_forward_pre_hook(
        lambda _, given: states.append(given[0].detach().reshape(-1, given[0].shape[-1]))
    )
    for prompt in prompts[:6]:
        decoder.generate(prompt, max_new_tokens=24)
    hook.remove()
    x, weight = torch.cat(states), head.blocks
    (rows, inputs), (tokens, _) = x.shape, shape_of(weight)
    assert rows > 60
    screen, found = Screen.of(library, weight), torch.empty(rows, dtype=torch.int64)
    said, whole = torch.empty((rows, tokens)), skinny_linear(x, weight, backend="native")
    made = screen.codes.data_ptr(), screen.columns.data_ptr(), screen.limits.data_ptr(), said.data_ptr()
    library.likeliest(
        x.data_ptr(), address_of(weight), *made, found.data_ptr(), rows, tokens, inputs, kind_of(weight), 1
    )
    assert torch.equal(found, whole.argmax(-1))
    computed = (said == whole).float().mean().item()
    print(f"{name}: {rows} states, {computed * tokens:.1f} products of {tokens} each in the mean")
    assert 0 < computed < COMPUTED
