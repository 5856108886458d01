"""What goes wrong for some sequences of a step, and leaves the others alone."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Faults(dict[int, Exception]):
    """What has failed, by slot."""

    @contextmanager
    def of(self, slots: Iterable[int]) -> Iterator[None]:
        """An error inside is that of these slots, and goes no further; Ctrl-C does."""
        try:
            yield
        except Exception as error:
            self.update(dict.fromkeys(slots, error))
