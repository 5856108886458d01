"""The target's laws at verified nodes, whatever part of the vocabulary can come out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from talon_core.choices import SeededChoices
from talon_core.engine.sequence_laws import Warping
from talon_core.engine.token_buffer import TokenBuffer
from talon_core.engine.warping import WarpedLaws
from talon_core.runtime.scores import best_numbers
from talon_core.sampling import Processor, Sampling
from talon_core.tree import TokenTree

VOCAB = 4096
PREFIX = np.array([3, 1, 4])
WARPERS: dict[str, list[Processor]] = {
    "nothing": [],
    "temperature": [TemperatureLogitsWarper(0.7)],
    "few": [TemperatureLogitsWarper(1.3), TopKLogitsWarper(50)],
    "few of the scores themselves": [TopKLogitsWarper(50)],
    "few, then warmer": [TopKLogitsWarper(50), TemperatureLogitsWarper(1.3)],
    "few, then fewer": [TopKLogitsWarper(50), TopPLogitsWarper(0.5)],
    "not few": [TopKLogitsWarper(50, filter_value=-2.0)],
    "half": [TopKLogitsWarper(VOCAB // 2)],
    "one": [TopPLogitsWarper(1e-6)],
}


def laws_of(logits: Tensor, processors: Sequence[Processor]) -> WarpedLaws:
    tree = TokenTree(np.arange(len(logits)), np.arange(len(logits)) - 1, np.zeros(len(logits)))
    prefix = TokenBuffer(PREFIX, 32, logits.device)
    sampling = Sampling(do_sample=True, processors=tuple(processors))
    return WarpedLaws(tree, logits, Warping(sampling, prefix), best=best_numbers)


def logits_of(nodes: int) -> Tensor:
    return 3.0 * torch.randn((nodes, VOCAB), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("warpers", WARPERS)
@pytest.mark.parametrize("tied", [False, True])
def test_a_law_is_the_softmax_of_what_the_processors_leave(warpers: str, tied: bool) -> None:
    logits, ids = logits_of(3), torch.tensor(PREFIX)[None]
    if tied:
        logits = logits.round()  # so that more tokens are left than the k of a top-k
    laws = laws_of(logits, WARPERS[warpers])
    for node in range(3):
        scores = logits[node][None].clone()
        for processor in WARPERS[warpers]:
            scores = processor(ids, scores)
        expected = torch.softmax(scores[0].double(), dim=-1).numpy()
        np.testing.assert_allclose(laws.at(node), expected, rtol=1e-13, atol=0)
        assert laws.at(node).shape == (VOCAB,)
    assert laws.asked == 3


def test_processors_that_change_in_the_middle_of_a_text_are_taken_as_they_are_now() -> None:
    logits, few = logits_of(2), TopKLogitsWarper(50)
    inner: Any = LogitsProcessorList([TemperatureLogitsWarper(1.3)])
    one, other = laws_of(logits, [few]), laws_of(logits, [inner])
    assert (one.at(0) > 0).sum() == 50
    assert (other.at(0) > 0).sum() > 50
    few.top_k = 2
    inner.append(TopKLogitsWarper(2))
    assert (one.at(1) > 0).sum() == (other.at(1) > 0).sum() == 2


def test_after_a_temperature_and_a_top_k_the_other_scores_are_left_aside() -> None:
    """Unless there are ties: then who warps all of them says what is left."""
    for logits, aside in ((logits_of(1), True), (logits_of(1).round(), False)):
        laws = laws_of(logits, WARPERS["few"])
        laws.draw(0, SeededChoices(0))
        assert (laws._left_at(0) is not None) == aside


def test_where_a_top_k_leaves_many_all_scores_are_warped() -> None:
    """The kernel puts each score that it finds in its place among the others: with thousands that takes a second."""
    for count, aside in ((63, True), (64, False)):
        laws = laws_of(logits_of(1), [TopKLogitsWarper(count)])
        assert (laws._left_at(0) is not None) == aside


@pytest.mark.parametrize("warpers", WARPERS)
def test_a_draw_is_the_one_from_the_whole_law(warpers: str) -> None:
    laws = laws_of(logits_of(1), WARPERS[warpers])
    drawing, picking = SeededChoices(7), SeededChoices(7)
    law = laws.at(0)
    assert [laws.draw(0, drawing) for _ in range(300)] == [picking.pick(law) for _ in range(300)]


def test_processors_that_look_at_scores_alone_leave_the_logits_as_they_were() -> None:
    for warpers in WARPERS.values():
        logits = logits_of(1)
        laws_of(logits, warpers).draw(0, SeededChoices(0))
        assert torch.equal(logits, logits_of(1))


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["all", "one"])
@pytest.mark.parametrize("warpers", ["nothing", "few"])
def test_scores_without_a_law_are_told(wrong: float, where: str, warpers: str) -> None:
    logits = logits_of(1)
    logits[0, : VOCAB if where == "all" else 1] = wrong
    laws = laws_of(logits, WARPERS[warpers])
    if where == "one" and wrong == -torch.inf:
        assert laws.at(0)[0] == 0
        return
    for ask in (lambda: laws.at(0), lambda: laws.draw(0, SeededChoices(0))):
        with pytest.raises(ValueError, match="there is no law to draw from after 3 tokens"):
            ask()
    assert laws.failures
