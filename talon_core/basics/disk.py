"""Models on disk: what libraries say of a disk that takes no more is said as the system says it."""

from collections.abc import Iterator
from contextlib import contextmanager

from talon_core.errors import one_line

TORCHS_WRITERS = ("PytorchStreamWriter", "inline_container")
"""What torch names where it cannot write a file."""


@contextmanager
def writing(what: str) -> Iterator[None]:
    """While entered, an error of safetensors, tokenizers or torch that a file cannot be written is an OSError.

    Args:
        what: cannot be written then, as its sentence begins.
    """
    try:
        yield
    except Exception as error:
        bare = type(error) is Exception and "(os error" in str(error)  # what tokenizers raises
        if bare or type(error).__name__ == "SafetensorError":
            raise OSError(f"{what} cannot be written: {one_line(error)}") from error
        if isinstance(error, RuntimeError) and any(name in str(error) for name in TORCHS_WRITERS):
            raise OSError(f"{what} cannot be written; the disk may be full ({one_line(error)})") from error
        raise
