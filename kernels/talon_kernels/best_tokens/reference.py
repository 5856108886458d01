"""The best tokens in plain PyTorch: what executors take where there are no kernels."""

from __future__ import annotations

from talon_core.runtime.scores import best_numbers as best_tokens_reference

__all__ = ["best_tokens_reference"]
