"""A generation as text that comes round by round."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

import attrs

from talon_core.engine.generation import Generation
from talon_core.request import INTERRUPTED, Chunk, Result

if TYPE_CHECKING:
    from talon_core.frontend import Frontend


class StreamedGeneration(Iterator[Chunk]):
    """A running generation as text: an iterator of `Chunk`s; `result()` when it is exhausted.

    Between chunks the model is free: it may be used for something else, or the stream may be left, by `break` or by an
    exception, without more ado; other streams of the same decoder may go on. The texts of all chunks joined are the
    result's `text`. As a context manager it is closed at the end of the block.

    Args:
        generation: what is streamed; nothing of it has been decoded.
        frontend: turns tokens into text.
    """

    def __init__(self, generation: Generation, frontend: "Frontend") -> None:
        self.generation = generation
        self._text = frontend.text_stream()
        self._shown = 0  # tokens whose text was asked for
        self._streamed: list[str] = []

    def __next__(self) -> Chunk:
        """Decode one round.

        Raises:
            StopIteration: if the generation is over, or was closed, cancelled or has failed.
            BusyError: if the model is being decoded at this moment, by another thread perhaps, or another stream holds
                the slots or rows that `bounds` allow, which does the stream no harm: ask again later.
        """
        round_ = next(self.generation)
        text = None
        if self._text is not None:
            new = self.generation.token_ids[self._shown :]  # not the round's array, which plugins have seen
            self._shown += len(new)
            text = self._text.push(new)
            if self.generation.finish_reason is not None:  # what was closed may end within a character
                text += self._text.end()
            self._streamed.append(text)
        return Chunk(text, round_)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let no further chunk come. From any thread, at any time: it returns at once, a round that runs is the last.

        The result then says "interrupted".
        """
        self.generation.close()

    def result(self) -> Result:
        """What has come out so far; its text is what was streamed, without half a character at the end."""
        result = self.generation.result()
        if self._text is not None and result.finish_reason == INTERRUPTED:
            return attrs.evolve(result, text="".join(self._streamed))
        return result
