"""PyTorch negates some tensors only when their numbers are asked for: a kernel that gets an address does not ask."""

import numpy as np
import pytest
import torch

from talon_core.runtime.host_draws import Warp
from talon_kernels.best_tokens import best_tokens
from talon_kernels.drawn_tokens import drawn_tokens
from talon_kernels.gated_mlp import gated_mlp
from talon_kernels.gated_unit import gated_unit
from talon_kernels.likeliest_tokens import likeliest_tokens
from talon_kernels.rms_norm import rms_norm
from talon_kernels.skinny_linear import skinny_linear


def drawn(scores, backend):
    return drawn_tokens(scores, [Warp()] * len(scores), np.linspace(0.05, 0.95, len(scores)), backend=backend)


@pytest.mark.parametrize(
    ("called", "shapes"),
    [
        (skinny_linear, [(3, 5), (4, 5), (4,)]),
        (gated_mlp, [(3, 5), (7, 5), (7, 5), (5, 7)]),
        (gated_unit, [(3, 5), (3, 5)]),
        (rms_norm, [(3, 5), (5,)]),
        (lambda scores, backend: best_tokens(scores, 2, backend=backend), [(3, 50)]),
        (drawn, [(9, 50)]),
        (likeliest_tokens, [(3, 64), (90, 64)]),
    ],
)
def test_negated_views_are_taken_for_what_they_stand_for(library, called, shapes):
    plain = [torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))) for shape in shapes]
    others = {rms_norm: {"eps": 1e-6}, gated_mlp: {"kind": "silu"}, gated_unit: {"kind": "silu"}}.get(called, {})
    expected = called(*plain, **others, backend="native")
    for at, tensor in enumerate(plain):
        negated = tensor.neg()._neg_view()
        assert negated.is_neg()
        given = [*plain[:at], negated, *plain[at + 1 :]]
        assert torch.equal(called(*given, **others, backend="native"), expected)
