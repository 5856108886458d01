"""Running generations: of one request, or of several that follow each other into the slots of an engine."""

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import AbstractContextManager

from talon_core.choices import Choices
from talon_core.engine.engine import Engine
from talon_core.engine.sequence import Sequence
from talon_core.errors import BusyError
from talon_core.request import Request, Result
from talon_core.rounds import Round

MakeResult = Callable[[Sequence], Result]
"""From a sequence to what is shown of it."""

FULL = (
    "other texts have the slots or the rows of keys and values that this one needs; ask again when one of them is "
    "over, close a stream that is not needed, or allow more"
)
"""What is said where a text would wait for another one that nobody decodes meanwhile."""


class Batch(Iterator[dict[Sequence, Round]]):
    """Several requests that are decoded together, so many at a time: when one is over, the next takes its place.

    An iterator of steps: each gives the rounds of the sequences that had one. Target and drafter are in session while a
    step runs and at no other time, unless `in_one_session` says so. What is left early, by `close` or because nobody
    has it any more, gives its slots back.

    Args:
        engine: decodes.
        requests: what to decode, at least one.
        size: at a time.
        made: makes results.
        choices: for each request the randomness of the rule and the policy; seeded from the requests by default.
        cancelled: asked before each step, also from `finish`; where it says True there are no more.

    Attributes:
        sequences: one for each request, in their order; where one fails, the error is raised and not kept in it.

    Raises:
        ValueError: if a request cannot be served, see `Engine.submit`; nothing is decoded then.
    """

    def __init__(
        self,
        engine: Engine,
        requests: SequenceOf[Request],
        size: int,
        made: MakeResult,
        choices: SequenceOf[Choices] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._engine = engine
        given = choices if choices is not None else [None] * len(requests)
        self.sequences = [engine.prepared(*of) for of in zip(requests, given, strict=True)]
        self._left = deque(self.sequences)
        self._running: list[Sequence] = []
        self._size = size
        self._made = made
        self._cancelled = cancelled
        self._closed = False
        self._target_passes = 0
        weakref.finalize(self, _abandon, self.sequences)

    def __next__(self) -> dict[Sequence, Round]:
        """Decode one step.

        Raises:
            StopIteration: if every sequence is over, or this was closed, cancelled or has failed.
            BusyError: if the model is being decoded at this moment, by another thread perhaps; or if nothing can be
                decoded before somebody else's text is over, because slots or rows are bounded.
        """
        if self.finished:
            raise StopIteration
        try:
            while self._left and len(self._running) < self._size:
                self._running.append(self._engine.enter(self._left.popleft()))
            rounds = self._engine.step(self._running)
            self._target_passes += bool(rounds)
            if not any(one.has_begun or one.finished for one in self._running):
                raise BusyError(FULL)
        except BusyError:
            raise
        except BaseException:
            self.close()
            raise
        if any(one.error is not None for one in self._running):
            self.close()
            raise _released(self._running)
        self._running = [one for one in self._running if not one.finished]
        return rounds

    @property
    def finished(self) -> bool:
        """Whether no further step will come."""
        if self._cancelled():
            self.close()
        return self._closed or not (self._left or self._running)

    @property
    def target_passes(self) -> int:
        """Forward passes over trees so far; the sequences share them."""
        return self._target_passes

    def in_one_session(self) -> AbstractContextManager[None]:
        """While entered, target and drafter stay in session between steps, which costs least; nobody else can decode.

        Raises:
            BusyError: if the model is being decoded at this moment.
        """
        return self._engine.session()

    def finish(self) -> None:
        """Decode to the end, in one session."""
        if self.finished:
            return
        with self.in_one_session():
            for _ in self:
                pass

    def close(self) -> None:
        """Let no further step come. From any thread, at any time: one that runs is the last."""
        self._closed = True
        _abandon(self.sequences)

    def results(self) -> list[Result]:
        """What has come out so far, one for each request."""
        return [self._made(one) for one in self.sequences]


def _abandon(sequences: SequenceOf[Sequence]) -> None:
    for one in sequences:
        if not one.finished:
            one.cancelled = True


def _released(sequences: SequenceOf[Sequence]) -> Exception:
    """The first error of sequences, which do not keep theirs: its traceback will hold whoever iterates, and them."""
    errors = [one.error for one in sequences if one.error is not None]
    for one in sequences:
        if one.error is not None:
            one.cancelled, one.error = True, None
    if isinstance(errors[0], StopIteration):  # whoever iterates would take it for the end
        made = RuntimeError(f"StopIteration was raised in a round: {errors[0]}")
        made.__cause__ = errors[0]
        return made
    return errors[0]


class Generation(Iterator[Round]):
    """One running generation: an iterator of `Round`s; `result()` when it is exhausted.

    Args:
        engine: decodes.
        request: what to decode.
        made: makes the result.
        choices: the randomness of the rule and the policy; seeded from the request by default.
        cancelled: as for `Batch`.

    Raises:
        ValueError: as `Batch`.
    """

    def __init__(
        self,
        engine: Engine,
        request: Request,
        made: MakeResult,
        choices: Choices | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self.request = request
        self._batch = Batch(engine, [request], 1, made, None if choices is None else [choices], cancelled)
        (self.sequence,) = self._batch.sequences

    @property
    def token_ids(self) -> list[int]:
        """The new tokens so far."""
        return self.sequence.token_ids

    @property
    def rounds(self) -> list[Round]:
        """One record per round."""
        return self.sequence.rounds

    @property
    def finish_reason(self) -> str | None:
        """Why it is over; None while it is not, and where it was left early."""
        return self.sequence.finish_reason

    @property
    def finished(self) -> bool:
        """Whether no further round will come."""
        return self._batch.finished

    def __next__(self) -> Round:
        """Decode one round; raises as `Batch` does."""
        while not (rounds := next(self._batch)):
            pass  # a part of the prompt was read
        return rounds[self.sequence]

    def in_one_session(self) -> AbstractContextManager[None]:
        """As `Batch.in_one_session`."""
        return self._batch.in_one_session()

    def finish(self) -> None:
        """Decode to the end, in one session."""
        self._batch.finish()

    def close(self) -> None:
        """Let no further round come. From any thread, at any time: a round that runs is the last one."""
        self._batch.close()

    def result(self) -> Result:
        """What has come out so far; `finish_reason` is "interrupted" if it was not run to its end."""
        (result,) = self._batch.results()
        return result
