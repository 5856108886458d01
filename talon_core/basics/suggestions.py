"""What somebody may have meant who gave a name that there is not."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], count: int = 1) -> list[str]:
    """The known names that resemble a word, the likeliest first; upper and lower case are alike."""
    by_lower = {name.lower(): name for name in known}
    return [by_lower[lower] for lower in difflib.get_close_matches(word.lower(), by_lower, n=count)]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question to be put into an error, with a space behind it; empty if no name resembles the word."""
    near = nearest(word, known)
    return f"did you mean '{near[0]}'? " if near else ""
