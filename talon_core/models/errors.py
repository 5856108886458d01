"""The errors of this package."""

from __future__ import annotations


class ModelError(ValueError):
    """A model cannot be had. The message says in one sentence what was wrong, which value, and what would be right."""


class UnreadableFile(ModelError):
    """A GGUF file is damaged, or has what nobody here reads; the message does not name the file."""
