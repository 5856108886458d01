"""Candidates out of rows of scores: the best tokens on the host, whole laws on demand."""

from collections.abc import Callable, Hashable, Mapping, Sequence

import attrs
import numpy as np
import torch
from torch import Tensor

from talon_core.candidates import Candidates
from talon_core.drafter import Frontier
from talon_core.runtime.device import RecordedFunctions
from talon_core.tree import FloatArray, IntArray


def best_numbers(scores: Tensor, width: int) -> Tensor:
    """The best tokens of each row and then their natural log-probabilities, shape `(rows, 2 * width)`, float32.

    A token's number is as exact in float32 as any vocabulary is small: below 2^24.

    Args:
        scores: shape `(rows, draft vocab)`, float32.
        width: how many, best first; all if there are fewer.
    """
    tokens, logp = _best(scores, width)
    return torch.cat([tokens.float(), logp], dim=-1)


def _best(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    best = scores.topk(min(width, scores.shape[-1]), dim=-1)
    top = best.values[..., :1]
    # relative to the best, so that large scores lose no digits
    return best.indices, (best.values - top) - (scores - top).exp().sum(-1, keepdim=True).log()


@attrs.frozen(eq=False)
class Best:
    """The best tokens of some rows of scores, on the host, and the rows' laws on demand.

    Attributes:
        vocab_size: the target's.
        scores: the drafter's; a row's softmax is its law. Shape `(rows, draft vocab)`, float32.
        vocabulary: the target's id of each of the drafter's tokens, shape `(draft vocab,)`, int64; None for all.
        tokens: the target's ids, best first, shape `(rows, width)`, int64.
        logp: their natural log-probabilities, same shape, float64.
    """

    vocab_size: int
    scores: Tensor
    vocabulary: IntArray | None
    tokens: IntArray
    logp: FloatArray

    @classmethod
    def of(cls, scores: Tensor, width: int, vocabulary: IntArray | None, vocab_size: int) -> "Best":
        """The best `width` tokens of each row, or all if there are fewer."""
        scores = scores.float()
        if scores.device.type != "cpu":
            return cls.read(best_numbers(scores, width), scores, vocabulary, vocab_size)
        tokens, logp = (found.numpy() for found in _best(scores, width))
        named = tokens if vocabulary is None else vocabulary[tokens]
        return cls(vocab_size, scores, vocabulary, named, logp.astype(np.float64))

    @classmethod
    def read(cls, numbers: Tensor, scores: Tensor, vocabulary: IntArray | None, vocab_size: int) -> "Best":
        """What `best_numbers` found in these scores; one copy to the host."""
        tokens, logp = np.split(numbers.cpu().numpy(), 2, axis=1)
        own = tokens.astype(np.int64)
        named = own if vocabulary is None else vocabulary[own]
        return cls(vocab_size, scores, vocabulary, named, logp.astype(np.float64))

    @classmethod
    def recorded(cls, found: tuple[Tensor, Tensor], rows: int, vocabulary: IntArray | None, vocab_size: int) -> "Best":
        """As `read`, of the first rows of numbers and scores that a recording left, and will overwrite."""
        numbers, scores = found
        return cls.read(numbers[:rows], scores[:rows].clone(), vocabulary, vocab_size)  # laws may be asked for later

    @classmethod
    def joined(cls, parts: Sequence["Best"], order: IntArray) -> "Best":
        """All rows of several, in this order; as many tokens a row as all of them have."""
        width = min(part.width for part in parts)
        tokens, logp = (
            np.concatenate([getattr(part, name)[:, :width] for part in parts])[order] for name in ("tokens", "logp")
        )
        scores = torch.cat([part.scores for part in parts])[torch.from_numpy(order)]
        return cls(parts[0].vocab_size, scores, parts[0].vocabulary, tokens, logp)

    @property
    def width(self) -> int:
        """Tokens a row."""
        return int(self.tokens.shape[1])

    def law(self, row: int) -> FloatArray:
        """A row's whole law over the target's vocabulary, shape `(vocab,)`, float64."""
        prob = torch.softmax(self.scores[row].double(), dim=-1).cpu().numpy()
        law: FloatArray = np.zeros(self.vocab_size)
        law[slice(len(prob)) if self.vocabulary is None else self.vocabulary] = prob
        return law

    def candidates(self, rows: Sequence[int] | IntArray, frontier: Frontier) -> Candidates:
        """Candidates for a frontier whose nodes these rows speak about, in its order."""
        logp = self.logp[rows, : frontier.width]  # (frontier, width)
        return Candidates(
            frontier=frontier.nodes,
            tokens=self.tokens[rows, : frontier.width],
            logp=logp,
            path_logp=frontier.tree.path_logp[frontier.nodes][:, None] + logp,
            law=lambda row: self.law(int(rows[row])),
        )

    def shared_out(self, frontiers: Sequence[Frontier], first: Mapping[int, int]) -> list[Candidates]:
        """The candidates of each frontier.

        Args:
            frontiers: as in `Drafter.propose`.
            first: by slot the first of its rows, which stand in the order of its nodes; slots that nothing is known
                about are not among them.
        """
        return [
            self.candidates(np.arange(len(one.nodes)) + first[one.slot], one)
            if one.slot in first
            else Candidates.unknown(one.nodes)
            for one in frontiers
        ]


def few_widths(width: int) -> int:
    """At least `width`, and one of few: each is recorded by itself."""
    return 1 << (width - 1).bit_length()


def last_rows(starts: IntArray, counts: Mapping[int, int]) -> tuple[IntArray, dict[int, int]]:
    """The last rows of some slots, out of those of all slots one after another.

    Args:
        starts: where the rows of each slot start, shape `(slots + 1,)`.
        counts: how many are wanted, by slot.

    Returns:
        Their places, ascending, int64, and for each slot the first of its own among them.
    """
    places: list[IntArray] = []
    first: dict[int, int] = {}
    for slot in sorted(counts):
        first[slot] = sum(map(len, places))
        places.append(np.arange(starts[slot + 1] - counts[slot], starts[slot + 1]))
    return np.concatenate(places), first


def taken(rows: Tensor, places: IntArray) -> Tensor:
    """Rows at ascending places, at least one; a view where they stand together, as those of one sequence do."""
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 == len(places):
        return rows[first : last + 1]
    return rows.index_select(0, torch.from_numpy(places).to(rows.device))


def recorded_best(
    functions: RecordedFunctions,
    kind: Hashable,
    scored: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    heads: int,
    width: int,
    vocabulary: IntArray | None,
    vocab_size: int,
) -> Best:
    """The best tokens by a function's scores, through a recording of it where there is one.

    Args:
        functions: records.
        kind: tells different functions apart.
        scored: from the inputs to scores of shape `(rows * heads, draft vocab)`.
        inputs: each of shape `(rows, ..)`.
        heads: rows of scores for each row of the inputs.
        width: how many tokens, best first.
        vocabulary: as in `Best`.
        vocab_size: the target's.
    """
    if functions.records:
        width = few_widths(width)

        def found(*own: Tensor) -> tuple[Tensor, Tensor]:
            scores = scored(*own).float()
            return best_numbers(scores, width), scores

        made = functions((kind, width), found, *inputs)
        return Best.recorded(made, heads * len(inputs[0]), vocabulary, vocab_size)
    return Best.of(scored(*inputs), width, vocabulary, vocab_size)
