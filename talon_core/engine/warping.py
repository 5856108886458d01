"""From the target's raw logits to the law a token is drawn from, with the true prefix of each node."""

from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from talon_core.choices import Choices, Foreseen
from talon_core.engine.processors import prefix_free, temperature_and_top_k
from talon_core.errors import written
from talon_core.laws import Laws, check_node
from talon_core.runtime.draws import draw_tokens
from talon_core.sampling import Processor, Sampling
from talon_core.target import NO_TOKEN
from talon_core.tree import FloatArray, IntArray, TokenTree

NO_IDS: Any = torch.empty((1, 0), dtype=torch.int64)
"""For processors that look at scores alone."""


class TokenBuffer:
    """A sequence's committed tokens on the target's device, with room behind them for the path under test.

    Tokens go to the device when somebody looks at them, so that greedy decoding without processors sends none.
    """

    def __init__(self, ids: IntArray, capacity: int, device: torch.device) -> None:
        self._ids: Tensor | None = None
        self._capacity, self._device = max(capacity, len(ids)), device
        self._sent = 0  # so many of the committed tokens are on the device
        self._unsent = [ids]
        self.length = len(ids)

    def append(self, tokens: IntArray) -> None:
        """Commit tokens."""
        self._unsent.append(tokens)
        self.length += len(tokens)

    def with_path(self, tokens: IntArray) -> Tensor:
        """Committed tokens and then `tokens`, shape `(1, length + len(tokens))`; valid until the next call."""
        end = self.length + len(tokens)
        ids = self._ids
        if ids is None or end > ids.shape[1]:
            room = self._capacity if end <= self._capacity else 2 * end
            grown = torch.zeros((1, room), dtype=torch.int64, device=self._device)
            if ids is not None:
                grown[:, : self._sent] = ids[:, : self._sent]
            ids = self._ids = grown
        if self._sent < end:
            new = np.concatenate([*self._unsent, tokens])
            ids[0, self._sent : end] = torch.as_tensor(new, device=self._device)
            self._sent, self._unsent = self.length, []
        return ids[:, :end]


@attrs.frozen(eq=False)
class Left:
    """A law that is 0 for most of the vocabulary.

    Attributes:
        tokens: the others, rising, shape `(tokens,)`, int64.
        probs: theirs, same shape, float64.
    """

    tokens: IntArray
    probs: FloatArray


@attrs.frozen(eq=False)
class Warping:
    """How a sequence's scores become laws.

    Args:
        sampling: how the user wants tokens chosen.
        prefix: every committed token; the last of them is the root of the tree that is verified.
        eos: token ids that end the text.

    Attributes:
        alone: the processors, if they look at scores alone; None where one of them may look at more, or is a list,
            which may be given others in the middle of the text.
    """

    sampling: Sampling
    prefix: TokenBuffer
    eos: frozenset[int] = frozenset()
    alone: tuple[Processor, ...] | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        found = prefix_free(self.sampling.processors)
        may_change = isinstance(found, str) or any(isinstance(one, list) for one in self.sampling.processors)
        object.__setattr__(self, "alone", None if may_change else found)


@attrs.frozen(eq=False)
class WarpedLaws(Laws):
    """The target's laws at a verified tree, warped with the true prefix of each node that is visited.

    Processors are called once per visited node, in the order of the walk, with exactly the token ids that plain
    decoding would show them there; so processors that look at the prefix work as they do there. So do those that
    remember their calls, if the rule does not look ahead.

    Args:
        tree: the verified tree.
        logits: raw scores, shape `(nodes, vocab)`.
        warping: the sequence's own.
        best: as that of `NodeOutputs`.

    Attributes:
        failures: what processors have raised: the user's own errors, not those of the rule that asked.
    """

    _tree: TokenTree
    _logits: Tensor
    _warping: Warping
    _best: Callable[[Tensor, int], Tensor] | None = None
    failures: list[BaseException] = attrs.field(factory=list)
    _warped: dict[int, Tensor] = attrs.field(factory=dict, init=False)
    _left: dict[int, Left | None] = attrs.field(factory=dict, init=False)

    def _scores(self, node: int) -> Tensor:
        check_node(self._tree, node)
        if node not in self._warped:
            try:
                self._warped[node] = self._warp(node)
            except BaseException as error:
                self.failures.append(error)
                raise
        return self._warped[node]

    def _raw(self, node: int) -> Tensor:
        scores = self._logits[node : node + 1]  # (1, vocab)
        return scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores

    def _warp(self, node: int) -> Tensor:
        scores, warping = self._raw(node), self._warping
        if warping.alone is not None:
            for processor in warping.alone:  # none of these writes into what it is given
                scores = processor(NO_IDS, scores)
            return scores[0]
        path = self._tree.tokens[self._tree.path(node)[1:]]
        ids = warping.prefix.with_path(path)
        scores = scores.clone()  # processors may write into what they are given
        shape = scores.shape
        for processor in warping.sampling.processors:
            scores = processor(ids, scores)
            if not isinstance(scores, Tensor) or scores.shape != shape:
                raise _no_scores(processor, scores, shape)
        return scores[0]

    def at(self, node: int) -> FloatArray:
        if not self._warping.sampling.do_sample:
            scores = self._scores(node)
            law = np.zeros(len(scores))
            law[int(scores.argmax())] = 1.0
            return law
        left = self._left_at(node)
        if left is None:
            return self._whole(node)
        law = np.zeros(self._logits.shape[1])
        law[left.tokens] = left.probs
        return law

    def _whole(self, node: int) -> FloatArray:
        law = np.asarray(torch.softmax(self._scores(node).double(), dim=-1).cpu().numpy())
        if isnan(law.item(0)):  # then all of it is
            raise self._failed(node)
        return law

    def _left_at(self, node: int) -> Left | None:
        """What a top-k leaves after `node`, where that can be told without warping every score; None otherwise."""
        alone, best = self._warping.alone, self._best
        if alone is None or best is None:
            return None
        check_node(self._tree, node)
        if node not in self._left:
            try:
                self._left[node] = self._left_by_top_k(node, best, alone)
            except BaseException as error:
                self.failures.append(error)
                raise
        return self._left[node]

    def _left_by_top_k(
        self, node: int, best: Callable[[Tensor, int], Tensor], alone: Sequence[Processor]
    ) -> Left | None:
        asked = temperature_and_top_k(alone)
        if asked is None or (asked[1] + 1) ** 2 > self._logits.shape[1]:
            return None  # to find many, each in its place, takes longer than to warp all
        before, count = asked
        raw = self._raw(node)
        found = best(raw, count + 1)[0].numpy()
        if np.isnan(found[-1]):
            return None  # a score is NaN, or the best one infinite: said by those who see all of them
        tokens = found[: count + 1].astype(np.int64)
        scores = raw.numpy()[0, tokens]
        for processor in before:
            scores = processor(NO_IDS, torch.from_numpy(scores[None])).numpy()[0]
        if not scores[count] < scores[count - 1]:
            return None  # a top-k leaves all that are as likely as the last one
        weights = np.exp(scores[:count].astype(np.float64) - scores.item(0))
        order = tokens[:count].argsort()
        return Left(tokens[order], weights[order] / weights.sum())

    def _failed(self, node: int) -> ValueError:
        error = no_law(self._warping.prefix.length + int(self._tree.depths[node]))
        self.failures.append(error)
        return error

    def draw(self, node: int, choices: Choices) -> int:
        if not self._warping.sampling.do_sample:
            return int(self._scores(node).argmax())
        if self._logits.device.type == "cpu" or not isinstance(choices, Foreseen):
            left = self._left_at(node)
            return choices.pick(self._whole(node)) if left is None else int(left.tokens[choices.pick(left.probs)])
        # one token comes back, not a law of the whole vocabulary
        scores = self._scores(node)
        number = scores.new_full((1,), float(choices.ahead(1)[0]), dtype=torch.float64)
        token = int(draw_tokens(scores[None], number).cpu())
        choices.used(1)
        if token == NO_TOKEN:
            raise self._failed(node)
        return token

    def ends(self, token: int) -> bool:
        return token in self._warping.eos

    @property
    def asked(self) -> int:
        """At how many nodes somebody has asked for the law or a token."""
        return len(self._warped.keys() | self._left.keys())


def no_law(tokens: int) -> ValueError:
    """The error of a law that is none, after so many tokens."""
    return ValueError(
        f"there is no law to draw from after {tokens} tokens: "
        "the scores hold NaN or infinity, or the processors forbid every token"
    )


def _no_scores(processor: Processor, returned: object, shape: torch.Size) -> ValueError:
    name = getattr(processor, "__name__", type(processor).__name__)
    what = f"scores of shape {tuple(returned.shape)}" if isinstance(returned, Tensor) else written(returned)
    return ValueError(
        f"logits processor '{name}' returned {what}; it must return scores of shape {tuple(shape)}, as it was given"
    )
