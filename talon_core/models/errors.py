"""The error of this package."""

from __future__ import annotations


class ModelError(ValueError):
    """A model cannot be had. The message says in one sentence what was wrong, which value, and what would be right."""
