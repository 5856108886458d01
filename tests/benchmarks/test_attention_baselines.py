"""What a kernel is compared with computes what the kernel computes."""

import numpy as np
import pytest
import torch

from talon_core.attention import TreeLayout
from talon_core.tree import TokenTree
from talon_kernels.tree_attention.reference import tree_attention_reference
from talon_tests.attention_baselines import flashinfer_way, pytorch_ways


@pytest.mark.parametrize("heads", [(2, 2), (8, 2)])
@pytest.mark.parametrize("prefix", [0, 1, 150])
def test_every_way_is_tree_attention(prefix, heads):
    torch.manual_seed(0)
    parents = np.array([-1, 0, 0, 1, 1, 2, 5, 6, 3])
    tree = TokenTree(np.arange(9), parents, np.zeros(9))
    query = torch.randn(heads[0], 9, 16)
    key, value = torch.randn(2, 1, heads[1], prefix + 9, 16)
    expected = tree_attention_reference(query, key, value, TreeLayout.of([tree], [prefix]), scale=0.3)
    ways = pytorch_ways(query, key, value, torch.from_numpy(tree.ancestor_mask()), 0.3)
    assert {"grouped", "folded"} <= ways.keys()
    assert ("split" in ways) == (prefix > 0)
    for way in ways.values():
        torch.testing.assert_close(way(), expected, rtol=1e-5, atol=1e-5)
    assert flashinfer_way(query, key, value, torch.from_numpy(tree.ancestor_mask()), 0.3) == {}
