"""Which values the options of `generate` may have; transformers takes others in silence, or fails with a bare error."""

import math
import operator
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor
from transformers.generation.configuration_utils import BaseWatermarkingConfig

from talon_core.basics.numerals import TEMPERATURES, fault_of_temperature
from talon_core.errors import written


@attrs.frozen
class Values:
    """Some values.

    Attributes:
        fit: whether a value, for a vocabulary of so many tokens, is one of them.
        wanted: what it must be, as the end of a sentence; `{last}` is the last token id.
    """

    fit: Callable[[Any, int], bool]
    wanted: str


def _index(value: object) -> int | None:
    """A whole number, which may be NumPy's or in a tensor of no dimensions; None for anything else."""
    if isinstance(value, bool | np.bool_) or (isinstance(value, Tensor) and (value.ndim or value.dtype is torch.bool)):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _indices(value: object) -> list[int] | None:
    """Whole numbers in a list, a tuple, a tensor or an array; None for anything else."""
    if isinstance(value, Tensor | np.ndarray):
        value = value.tolist() if value.ndim == 1 else None
    found = [_index(one) for one in value] if isinstance(value, list | tuple) else [None]
    return [one for one in found if one is not None] if None not in found else None


def _whole(at_least: int) -> Values:
    def fit(value: object, _: int) -> bool:
        found = _index(value)
        return found is not None and found >= at_least

    return Values(fit, f"a whole number and at least {at_least}")


def _number(wanted: str, holds: Callable[[Any], bool]) -> Values:
    def fit(value: object, _: int) -> bool:
        return isinstance(value, Real) and not isinstance(value, bool) and holds(value)

    return Values(fit, wanted)


def _in_vocabulary(found: list[int] | None, vocab: int) -> bool:
    return found is not None and all(0 <= one < vocab for one in found)


def _tokens(value: object, vocab: int) -> bool:
    return _in_vocabulary(_indices(value), vocab)


def _token(value: object, vocab: int) -> bool:
    return _tokens([value], vocab)


def _phrases(value: object, vocab: int) -> bool:
    return isinstance(value, list) and bool(value) and all(bool(one) and _tokens(one, vocab) for one in value)


def _decay(value: object, _: int) -> bool:
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    start, factor = value
    return _whole(0).fit(start, 0) and ABOVE_0.fit(factor, 0)


def _biases(value: object, _: int) -> bool:
    """NaN takes the place of every score; the rest is transformers' own check."""
    given: list[object] = []
    if isinstance(value, Mapping):
        given = [*value.values()]
    elif isinstance(value, list):
        given = [one[-1] for one in value if isinstance(one, list | tuple) and one]
    return not any(isinstance(one, float) and math.isnan(one) for one in given)


def _flag(value: object, _: int) -> bool:
    return isinstance(value, bool | np.bool_) or _index(value) in (0, 1)


def _watermark(value: object, _: int) -> bool:
    return isinstance(value, BaseWatermarkingConfig | dict)


FLAG = Values(_flag, "True or False")
SHARE = _number("a number from 0 to 1", lambda value: 0 <= value <= 1)
ABOVE_0 = _number("a finite number above 0", lambda value: 0 < value < math.inf)
TOKEN = Values(_token, "a token id, 0 to {last}")
TOKENS = Values(_tokens, "a list of token ids, 0 to {last}")
ENDS = Values(lambda value, vocab: _token(value, vocab) or _tokens(value, vocab), f"{TOKEN.wanted}, or a list of them")
ANY_TOKEN = Values(lambda value, _: _index(value) is not None, "a whole number")

SEED = _whole(0)

VALUES: Mapping[str, Values] = {
    **dict.fromkeys(("max_new_tokens", "max_length"), _whole(1)),
    **dict.fromkeys(("min_new_tokens", "min_length", "top_k"), _whole(0)),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), _whole(0)),
    **dict.fromkeys(("top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"), SHARE),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty"), ABOVE_0),
    **dict.fromkeys(("do_sample", "renormalize_logits", "remove_invalid_values", "return_dict_in_generate"), FLAG),
    **dict.fromkeys(("eos_token_id", "forced_eos_token_id"), ENDS),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), TOKENS),
    **dict.fromkeys(("pad_token_id", "bos_token_id"), ANY_TOKEN),
    "forced_bos_token_id": TOKEN,
    "bad_words_ids": Values(_phrases, "a list of lists of token ids, 0 to {last}, none of them empty"),
    "sequence_bias": Values(_biases, "without NaN"),
    "temperature": _number(TEMPERATURES, lambda value: fault_of_temperature(value) is None),
    "max_time": _number("a number of seconds, at least 0", lambda value: value >= 0),
    "exponential_decay_length_penalty": Values(_decay, "a whole number of at least 0 and a finite number above 0"),
    "watermarking_config": Values(_watermark, "a WatermarkingConfig, or a dictionary of its fields"),
}
"""By option; the values of those that are not here are left to transformers."""


FORCED = ("forced_bos_token_id", "forced_eos_token_id")
"""Tokens that processors write into scores, where one that there is not is an IndexError in the middle of a text."""


def check_values(options: Mapping[str, Any], vocab: int, own: Mapping[str, Any] | None = None) -> None:
    """Refuse values that an option cannot have.

    Args:
        options: fields of a `GenerationConfig`; None stands for what was not given.
        vocab: how many token ids there are.
        own: what the model's own generation config says, which nobody has asked for: such a value is let through.

    Raises:
        ValueError: for the first; the sentence names it.
    """
    for option, values in VALUES.items():
        value = options.get(option)
        if value is not None and not values.fit(value, vocab) and not _same(value, (own or {}).get(option)):
            raise ValueError(f"{option} is {written(value)}; it must be {values.wanted.format(last=vocab - 1)}")


def check_seed(seed: object) -> None:
    """Refuse what is no seed; None is one.

    Raises:
        ValueError: for anything else than a whole number that is not negative.
    """
    if seed is not None and not SEED.fit(seed, 0):
        raise ValueError(f"seed is {written(seed)}; it must be {SEED.wanted}")


def _same(one: object, other: object) -> bool:
    plain = isinstance(one, int | float | str | list | tuple | dict)
    return plain and type(one) is type(other) and one == other
