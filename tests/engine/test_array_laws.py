"""Laws of scores that are NumPy arrays against those of the same scores as tensors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from talon_core import Request, TokenTree
from talon_core.certify.processors import PROCESSORS
from talon_core.choices import SeededChoices
from talon_core.engine.array_laws import ArrayLaws
from talon_core.engine.sequence_laws import SequenceLaws, Warping
from talon_core.engine.token_buffer import TokenBuffer
from talon_core.engine.warping import WarpedLaws
from talon_core.sampling import Processor, Sampling, Temperature

VOCAB = 50
PREFIX = np.array([3, 1, 4])
TREE = TokenTree([4, 1, 5, 9], [-1, 0, 1, 1], np.zeros(4))
RAISES = "a user's own"


def raising(_: Tensor, scores: Tensor) -> Tensor:
    raise KeyError(RAISES)


def inner() -> Any:
    return LogitsProcessorList([TopPLogitsWarper(0.7)])


WARPERS: dict[str, tuple[Processor, ...]] = {
    "nothing": (),
    "temperature": (Temperature(0.7),),
    "temperature of transformers": (TemperatureLogitsWarper(0.7),),
    "scores alone": (TopPLogitsWarper(0.7), Temperature(1.3)),
    "the text": (RepetitionPenaltyLogitsProcessor(1.7), Temperature(1.3)),
    "a list": (inner(),),
    "the text, in arrays": (PROCESSORS["repetition penalty 1.7"], PROCESSORS["no repeated pair"], Temperature(1.3)),
    "of both kinds": (PROCESSORS["repetition penalty 1.7"], TopPLogitsWarper(0.7)),
}


def both(logits: Any, processors: tuple[Processor, ...], do_sample: bool = True) -> list[SequenceLaws[Any]]:
    """The laws of an array, and those of a tensor."""
    sampling = Sampling(do_sample, processors)
    warping = [Warping(sampling, TokenBuffer(PREFIX, 8, None), frozenset({7})) for _ in range(2)]
    return [ArrayLaws(TREE, logits, warping[0]), WarpedLaws(TREE, torch.tensor(logits), warping[1])]


def random_logits() -> Any:
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(len(TREE), VOCAB))
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    return logits


@pytest.mark.parametrize("warpers", WARPERS)
def test_laws_are_those_of_tensors(warpers: str) -> None:
    logits = random_logits()
    given = logits.copy()
    found, expected = both(logits, WARPERS[warpers])
    for node in (0, 2, 1, 3):
        law = found.at(node)
        assert (law.dtype, law.shape) == (np.float64, (VOCAB,))
        np.testing.assert_allclose(law, expected.at(node), rtol=1e-14, atol=0)
        assert [found.draw(node, SeededChoices(seed)) for seed in range(50)] == [
            expected.draw(node, SeededChoices(seed)) for seed in range(50)
        ]
    assert (found.asked, found.failures, found.ends(7), found.ends(6)) == (4, [], True, False)
    assert logits.tobytes() == given.tobytes()


@pytest.mark.parametrize("warpers", WARPERS)
def test_the_most_likely_tokens_are_those_of_tensors(warpers: str) -> None:
    logits = random_logits().round()  # so that some are as likely as others
    found, expected = both(logits, WARPERS[warpers], do_sample=False)
    for node in range(len(TREE)):
        assert found.at(node).tolist() == expected.at(node).tolist()
        assert found.draw(node, SeededChoices(0)) == expected.draw(node, SeededChoices(0)) == found.at(node).argmax()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [slice(None), slice(1)])
@pytest.mark.parametrize("warpers", ["nothing", "the text, in arrays", "a list"])
def test_scores_without_a_law_are_told_as_those_of_tensors_are(wrong: float, where: slice, warpers: str) -> None:
    logits = 3 * np.random.default_rng(0).normal(size=(len(TREE), VOCAB))
    logits[1, where] = wrong
    asks: tuple[Callable[[SequenceLaws[Any]], Any], ...] = (
        lambda laws: laws.at(1),
        lambda laws: laws.draw(1, SeededChoices(0)),
    )
    for ask in asks:
        for laws in both(logits, WARPERS[warpers]):
            if where == slice(1) and wrong == -np.inf:
                ask(laws)
                continue
            with pytest.raises(ValueError, match="there is no law to draw from after 4 tokens"):
                ask(laws)
            assert len(laws.failures) == 1


def test_what_a_processor_raises_is_the_users_own_error() -> None:
    for laws in both(random_logits(), (raising,)):
        with pytest.raises(KeyError, match=RAISES):
            laws.at(0)
        assert [type(error) for error in laws.failures] == [KeyError]
        with pytest.raises(IndexError):
            laws.at(len(TREE))


def test_a_text_outgrows_its_room() -> None:
    tokens, text = TokenBuffer(PREFIX, 4, None), PREFIX.tolist()
    for new in ([1], [5, 9], [2, 6, 5, 3, 5]):
        path = np.array([8, 8, 8])
        for found in (tokens.array_with_path(path), tokens.with_path(path)):
            assert found.tolist() == [[*text, 8, 8, 8]]
        tokens.append(np.array(new))
        text += new
        assert tokens.length == len(text)


def test_tokens_are_sent_to_a_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is the host's memory, by a name that is not the CPU's."""

    class Named:
        type = "other"

    sent: list[int] = []
    zeros, as_tensor = torch.zeros, torch.as_tensor

    def noting(array: Any, device: Any) -> Tensor:
        sent.append(len(array))
        return as_tensor(array).clone()

    monkeypatch.setattr(torch, "zeros", lambda *shape, dtype, device: zeros(*shape, dtype=dtype))
    monkeypatch.setattr(torch, "as_tensor", noting)
    device: Any = Named()
    tokens = TokenBuffer(PREFIX, 6, device)
    assert tokens.with_path(np.array([7])).tolist() == [[3, 1, 4, 7]]
    assert tokens.with_path(np.array([8, 9])).tolist() == [[3, 1, 4, 8, 9]]
    tokens.append(np.array([8]))
    assert tokens.with_path(np.array([9])).tolist() == [[3, 1, 4, 8, 9]]
    assert sent == [4, 2, 2]
    assert tokens.with_path(np.array([9, 2, 6])).tolist() == [[3, 1, 4, 8, 9, 2, 6]]  # which has no room there
    assert sent == [4, 2, 2, 7]


def test_processors_of_arrays_work_where_scores_are_tensors() -> None:
    processors = (PROCESSORS["top-k 2"], Temperature(2.0))
    request = Request(PREFIX, 1, Sampling(True, processors))
    laws = WarpedLaws(TREE, torch.randn(4, VOCAB), Warping(request.sampling, TokenBuffer(PREFIX, 8, None)))
    assert (laws.at(2) > 0).sum() == 2
