"""Processors of small worlds against those of transformers that they stand for."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from talon_core.certify.processors import PROCESSORS

OF_TRANSFORMERS: dict[str, Any] = {
    "top-k 2": TopKLogitsWarper(2),
    "top-p 0.7": TopPLogitsWarper(0.7),
    "min-p 0.2": MinPLogitsWarper(0.2),
    "typical 0.8": TypicalLogitsWarper(0.8),
    "without token 1": SuppressTokensLogitsProcessor([1]),
    "repetition penalty 1.7": RepetitionPenaltyLogitsProcessor(1.7),
    "no repeated pair": NoRepeatNGramLogitsProcessor(2),
}


def test_each_stands_for_one_of_transformers() -> None:
    assert [*PROCESSORS] == [*OF_TRANSFORMERS]


@pytest.mark.parametrize("name", PROCESSORS)
def test_scores_are_those_of_transformers(name: str) -> None:
    rng, changed = np.random.default_rng(0), 0
    for _ in range(500):
        vocab, length = rng.integers(2, 6), rng.integers(1, 8)
        ids, scores = rng.integers(vocab, size=(1, length)), 2 * rng.normal(size=(1, vocab))
        scores[0, rng.random(vocab) < 0.2] = -np.inf
        given = scores.copy()
        expected = OF_TRANSFORMERS[name](torch.from_numpy(ids), torch.from_numpy(scores.copy()))
        found = PROCESSORS[name](ids, scores)
        assert found.tobytes() == expected.numpy().tobytes()
        assert scores.tobytes() == given.tobytes()
        changed += int((found != scores).any())
    assert changed > 50


@pytest.mark.parametrize("name", PROCESSORS)
def test_tensors_are_taken_as_well(name: str) -> None:
    ids, scores = np.array([[1, 0, 1]]), np.array([[0.5, -1.0, 2.0]])
    for dtype in (torch.float64, torch.float32):
        found = PROCESSORS[name](torch.from_numpy(ids), torch.from_numpy(scores).to(dtype))
        assert (found.dtype, found.shape) == (dtype, (1, 3))
        assert torch.equal(found, torch.from_numpy(PROCESSORS[name](ids, scores)).to(dtype))
