"""From the target's raw logits to the law a token is drawn from, with the true prefix of each node."""

import attrs
import numpy as np
import torch
from torch import Tensor

from talon_core.choices import Choices, Foreseen
from talon_core.errors import written
from talon_core.laws import Laws, check_node
from talon_core.runtime.draws import draw_tokens
from talon_core.sampling import Processor, Sampling
from talon_core.target import NO_TOKEN
from talon_core.tree import FloatArray, IntArray, TokenTree


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
class WarpedLaws(Laws):
    """The target's laws at a verified tree, warped with the true prefix of each node that is visited.

    Processors are called once per visited node, in the order of the walk, with exactly the token ids that plain
    decoding would show them there; so processors that look at the prefix work as they do there. So do those that
    remember their calls, if the rule does not look ahead.

    Args:
        tree: the verified tree.
        logits: raw scores, shape `(nodes, vocab)`.
        sampling: how the user wants tokens chosen.
        prefix: every committed token, the tree's root being the last of them.
        eos: token ids that end the text.

    Attributes:
        failures: what processors have raised: the user's own errors, not those of the rule that asked.
    """

    _tree: TokenTree
    _logits: Tensor
    _sampling: Sampling
    _prefix: TokenBuffer
    _eos: frozenset[int] = frozenset()
    failures: list[BaseException] = attrs.field(factory=list)
    _warped: dict[int, Tensor] = attrs.field(factory=dict, init=False)

    def _scores(self, node: int) -> Tensor:
        check_node(self._tree, node)
        if node not in self._warped:
            try:
                self._warped[node] = self._warp(node)
            except BaseException as error:
                self.failures.append(error)
                raise
        return self._warped[node]

    def _warp(self, node: int) -> Tensor:
        scores = self._logits[node]  # (vocab,)
        if scores.dtype in (torch.bfloat16, torch.float16):
            scores = scores.float()
        if self._sampling.processors:
            path = self._tree.tokens[self._tree.path(node)[1:]]
            ids = self._prefix.with_path(path)
            scores = scores[None].clone()  # processors may write into what they are given
            shape = scores.shape
            for processor in self._sampling.processors:
                scores = processor(ids, scores)
                if not isinstance(scores, Tensor) or scores.shape != shape:
                    raise _no_scores(processor, scores, shape)
            scores = scores[0]
        return scores

    def at(self, node: int) -> FloatArray:
        scores = self._scores(node)
        if not self._sampling.do_sample:
            law = np.zeros(len(scores))
            law[int(scores.argmax())] = 1.0
            return law
        law = np.asarray(torch.softmax(scores.double(), dim=-1).cpu().numpy())
        if np.isnan(law[0]):  # then all of it is
            raise self._failed(node)
        return law

    def _failed(self, node: int) -> ValueError:
        error = no_law(self._prefix.length + int(self._tree.depths[node]))
        self.failures.append(error)
        return error

    def draw(self, node: int, choices: Choices) -> int:
        if not self._sampling.do_sample:
            return int(self._scores(node).argmax())
        if self._logits.device.type == "cpu" or not isinstance(choices, Foreseen):
            return choices.pick(self.at(node))
        # one token comes back, not a law of the whole vocabulary
        scores = self._scores(node)
        number = scores.new_full((1,), float(choices.ahead(1)[0]), dtype=torch.float64)
        token = int(draw_tokens(scores[None], number).cpu())
        choices.used(1)
        if token == NO_TOKEN:
            raise self._failed(node)
        return token

    def ends(self, token: int) -> bool:
        return token in self._eos

    @property
    def asked(self) -> int:
        """At how many nodes somebody has asked for the law or a token."""
        return len(self._warped)


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
