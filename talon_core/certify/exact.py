"""The exact law of what a decoder emits, by enumeration, and the law it must have."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any

import attrs
import numpy as np

from talon_core.certify.ticks import Ticks
from talon_core.choices import Choices, enumerate_outcomes
from talon_core.decoding.decoder import Decoder
from talon_core.drafter import Drafter, DrafterSpec
from talon_core.engine.generation import Generation
from talon_core.request import Request
from talon_core.sampling import Processor, Sampling, of_arrays
from talon_core.table import TableTarget
from talon_core.target import Target
from talon_core.tree import FloatArray

Law = dict[tuple[int, ...], float]
"""For each sequence of new tokens its probability."""

LawsAfter = MutableMapping[tuple[int, ...], FloatArray]
"""By new tokens, the target's law after them, shape `(vocab,)`."""


def generations(decoder: Decoder, request: Request) -> Iterator[tuple[float, Generation]]:
    """A generation in every way in which its random choices can come out, each with its probability."""

    def experiment(choices: Choices) -> Generation:
        decoder.engine.forget()  # what a policy has learnt of the machine; outcomes must not know each other
        if isinstance(decoder.engine.now, Ticks):
            decoder.engine.now.restart()
        generation = decoder.run(request, choices)
        generation.finish()
        return generation

    with decoder.engine.session():  # one for all: a model is looked through when one begins
        yield from enumerate_outcomes(experiment)


def emitted_law(decoder: Decoder, request: Request) -> Law:
    """The exact law of a generation's tokens: every random choice enumerated, whole generation by whole generation."""
    return law_of((prob, tuple(generation.token_ids)) for prob, generation in generations(decoder, request))


def law_of(texts: Iterable[tuple[float, tuple[int, ...]]]) -> Law:
    """The law of texts that come with their probabilities, the same text perhaps several times."""
    law: Law = defaultdict(float)
    for prob, text in texts:
        law[text] += prob
    return law


def completed(emitted: Law, length: int, after: Callable[[tuple[int, ...]], FloatArray], end: int | None = None) -> Law:
    """The law of texts of so many tokens, or fewer where they end, after what is emitted drawn from the target.

    Args:
        emitted: what is emitted; of longer texts the first `length` tokens count.
        length: in tokens.
        after: the target's law after new tokens, shape `(vocab,)`.
        end: the token that ends the text; None if none does.
    """
    law: Law = defaultdict(float)
    waiting = [*emitted.items()]
    while waiting:
        text, prob = waiting.pop()
        if len(text) >= length or end in text[-1:]:
            law[text[:length]] += prob
        else:
            waiting += [((*text, token), prob * p) for token, p in enumerate(after(text).tolist()) if p > 0]
    return law


def ancestral_law(target: TableTarget, request: Request, known: LawsAfter | None = None) -> Law:
    """The exact law of sampling one token after the other; written without any of the engine's parts.

    Args:
        target: whose law it is.
        request: what to decode.
        known: gets the law of the token after each text that can come out.

    Raises:
        ValueError: if the processors forbid every token after a text that can come out, however unlikely.
    """
    law: Law = defaultdict(float)

    def extend(tokens: list[int], prob: float) -> None:
        if tokens and (tokens[-1] in request.eos or len(tokens) >= _limit(target, request)):
            law[tuple(tokens)] += prob
            return
        after = law_after(target, [*request.ids.tolist(), *tokens], request.sampling)
        if known is not None:
            known[tuple(tokens)] = after
        for token, p in enumerate(after.tolist()):
            if p > 0:
                extend([*tokens, token], prob * p)

    extend([], 1.0)
    return law


def _limit(target: TableTarget, request: Request) -> int:
    room = target.context_length - len(request.ids) if target.context_length else request.max_new_tokens
    return min(room, request.max_new_tokens)


def law_after(target: TableTarget, prefix: list[int], sampling: Sampling) -> FloatArray:
    """The law of the token after a prefix, written without any of the engine's parts.

    Returns:
        The law, shape `(vocab,)`, read only.

    Raises:
        ValueError: if the processors forbid every token.
    """
    numbers = target.after(prefix)
    if sampling.processors:
        numbers = _processed(numbers, prefix, sampling.processors)
    if not sampling.do_sample:
        return _constant(np.eye(len(numbers))[numbers.argmax()])
    highest = numbers.max()
    if not np.isfinite(highest):
        raise ValueError(f"there is no law to draw from after tokens {prefix}")
    weights = np.exp(numbers - highest)
    return _constant(weights / weights.sum())


def _processed(numbers: FloatArray, prefix: list[int], processors: Sequence[Processor]) -> FloatArray:
    """What processors make of a target's scores after a prefix, in tensors where one of them needs such."""
    scores: Any = numbers.copy()[None]
    ids: Any = np.array([prefix], dtype=np.int64)
    if of_arrays(processors) is None:
        import torch

        scores, ids = torch.from_numpy(scores), torch.from_numpy(ids)
    for processor in processors:
        scores = processor(ids, scores)
    processed: FloatArray = np.asarray(scores[0])
    return processed


def _constant(law: FloatArray) -> FloatArray:
    """A copy that nobody can ever write to: plugins see it, and it may serve again."""
    return np.frombuffer(law.tobytes(), dtype=np.float64)


def distance(one: Law, other: Law) -> float:
    """The largest difference of two laws' probabilities."""
    return max(abs(one.get(tokens, 0.0) - other.get(tokens, 0.0)) for tokens in {*one, *other})


@attrs.frozen(eq=False)
class Given(DrafterSpec):
    """A drafter that is ready."""

    name = "given"
    drafter: Drafter

    def open(self, target: Target) -> Drafter:
        return self.drafter


@attrs.frozen(eq=False)
class MadeUp(Given):
    """One that is made up, of which policies are told no name (`SequenceInfo.drafter`): nobody can know it."""

    name = ""
