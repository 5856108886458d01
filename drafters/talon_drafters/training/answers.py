"""The texts a drafter learns from: token ids of prompts and of the target's answers, kept in one file."""

import heapq
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor
from transformers import StoppingCriteria

from talon_core.basics import records
from talon_core.runtime.cache_keyword import cache_keyword
from talon_drafters.training.growing_cache import growing_cache


@attrs.frozen
class Text:
    """A prompt and what followed it, as token ids.

    Attributes:
        ids: all of it, at least two tokens.
        prompt: how many of them are the prompt; the drafter learns to foresee what comes after.
        index: the prompt's number in its file.
        source: where the prompt comes from.
    """

    ids: list[int]
    prompt: int
    index: int
    source: str = ""


def read_texts(file: Path) -> list[Text]:
    """The texts of a file that `write_answers` wrote; a line that is not finished, or damaged, is left out."""
    lines = file.read_bytes().split(b"\n") if file.exists() else []
    found = map(_text_of, lines)
    return [text for text in found if text is not None]


def _text_of(line: bytes) -> Text | None:
    """What stands in a line; None in one that holds no text."""
    try:
        text: Text = records.make(Text, records.parsed(line.decode()), READERS)
    except ValueError:
        return None
    return text


def _ids(value: Any) -> list[int]:
    if not isinstance(value, list) or set(map(type, value)) != {int} or min(value) < 0:
        raise ValueError("are no token ids")
    return value


READERS: Mapping[str, records.Reader] = {
    "ids": _ids,
    "prompt": records.whole,
    "index": records.whole,
    "source": records.words,
}


def append_texts(file: Path, texts: Sequence[Text]) -> None:
    """Add texts to a file, all of them in one write, in the place of an unfinished last line."""
    lines = "".join(json.dumps(attrs.asdict(text), separators=(",", ":")) + "\n" for text in texts)
    with file.open("a+b") as out:
        size = out.tell()
        out.seek(max(size - 1, 0))
        if size and out.read() != b"\n":
            out.seek(0)
            *_, last = out.read().split(b"\n")
            if _text_of(last) is None:
                out.truncate(size - len(last))
            else:
                out.write(b"\n")
        out.write(lines.encode())


def continue_texts(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    batch_size: int = 64,
) -> Iterator[tuple[int, list[int]]]:
    """Let a model continue prompts, in batches of similar length.

    A batch ends when three quarters of its texts have; the others go on in a later batch, instead of holding up places
    in which nothing is written any more.

    Args:
        model: a causal LM.
        tokenizer: gives the token that pads and the one that ends a text.
        prompts: token ids.
        max_new_tokens: most tokens of a continuation.
        temperature: 0 is greedy.
        batch_size: prompts that run together.

    Yields:
        A prompt's number and the new tokens, the one that ends the text included; in the order in which they end.
    """
    ends = model.generation_config.eos_token_id
    stops = {ends} if isinstance(ends, int) else set(ends or ())
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else next(iter(stops), 0)
    how: dict[str, Any] = {"do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 50}
    if temperature > 0:
        how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    waiting = [(len(prompt), index) for index, prompt in enumerate(prompts)]
    heapq.heapify(waiting)
    written: dict[int, list[int]] = {index: [] for index in range(len(prompts))}
    while waiting:
        batch = [heapq.heappop(waiting)[1] for _ in range(min(batch_size, len(waiting)))]
        texts = [[*prompts[index], *written[index]] for index in batch]
        longest = max(map(len, texts))
        ids = torch.full((len(batch), longest), pad, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, longest - len(text) :] = torch.as_tensor(text)
            mask[row, longest - len(text) :] = 1
        most = max(max_new_tokens - len(written[index]) for index in batch)
        with torch.inference_mode():
            out = model.generate(
                ids.to(model.device),
                attention_mask=mask.to(model.device),
                max_new_tokens=most,
                pad_token_id=pad,
                stopping_criteria=[_MostHaveEnded(stops, 0.75 if waiting else 1.0)],
                **{cache_keyword(model): growing_cache(model)},
                **how,
            )
        for index, row in zip(batch, out[:, longest:].tolist(), strict=True):
            new = row[: max_new_tokens - len(written[index])]
            end = next((place for place, token in enumerate(new) if token in stops), None)
            written[index] += new if end is None else new[: end + 1]
            if end is not None or len(written[index]) >= max_new_tokens:
                yield index, written.pop(index)
            else:
                heapq.heappush(waiting, (len(prompts[index]) + len(written[index]), index))


class _MostHaveEnded(StoppingCriteria):  # type: ignore[misc]  # transformers has no complete types
    """Ends a batch when a share of its texts has ended."""

    def __init__(self, stops: Collection[int], share: float) -> None:
        self._stops = torch.tensor(sorted(stops), dtype=torch.int64)
        self._share = share
        self._ended: Tensor | None = None

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        now = torch.isin(input_ids[:, -1], self._stops.to(input_ids.device))
        self._ended = now if self._ended is None else self._ended | now
        return torch.full_like(now, bool(self._ended.float().mean() >= self._share))


def write_answers(
    model: Any,
    tokenizer: Any,
    examples: Sequence[Any],
    file: Path,
    *,
    max_new_tokens: int,
    temperature: float,
    batch_size: int,
    advance: Callable[[int, int], None] = lambda texts, tokens: None,
) -> None:
    """Let the target answer prompts, and add prompts and answers to a file; those that are in it are not done again.

    Prompts with an answer of their own keep it. Greedy and sampled answers alternate if the temperature is above 0,
    so that the drafter knows both.

    Args:
        examples: `Example`s; their order must not change between runs.
        file: JSON lines of `Text`.
        temperature: of every second answer.
        advance: called with the number of new texts and of new tokens, for a progress bar.
    """
    done = {text.index for text in read_texts(file)}
    window = 8 * batch_size  # sorted by length among themselves, so that little is padding
    todo = [index for index in range(len(examples)) if index not in done]
    for start in range(0, len(todo), window):
        part = todo[start : start + window]
        prompts = {index: prompt_ids(tokenizer, examples[index].prompt) for index in part}
        given = [index for index in part if examples[index].answer is not None]
        ends = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
        found = [
            (index, tokenizer(examples[index].answer, add_special_tokens=False)["input_ids"] + ends) for index in given
        ]
        _keep(file, found, prompts, examples, advance)
        open_ = [index for index in part if examples[index].answer is None]
        halves = [open_] if temperature == 0 else [open_[::2], open_[1::2]]
        for half, heat in zip(halves, (0.0, temperature), strict=False):
            batch: list[tuple[int, list[int]]] = []
            for place, new in continue_texts(
                model,
                tokenizer,
                [prompts[index] for index in half],
                max_new_tokens=max_new_tokens,
                temperature=heat,
                batch_size=batch_size,
            ):
                batch.append((half[place], new))
                if len(batch) == batch_size:
                    _keep(file, batch, prompts, examples, advance)
                    batch = []
            _keep(file, batch, prompts, examples, advance)


def _keep(
    file: Path,
    found: Sequence[tuple[int, list[int]]],
    prompts: dict[int, list[int]],
    examples: Sequence[Any],
    advance: Callable[[int, int], None],
) -> None:
    texts = [
        Text(prompts[index] + new, len(prompts[index]), index, examples[index].source) for index, new in found if new
    ]
    if texts:
        append_texts(file, texts)
        advance(len(texts), sum(len(text.ids) - text.prompt for text in texts))


def prompt_ids(tokenizer: Any, prompt: str) -> list[int]:
    """A prompt's token ids, put through the chat template where there is one."""
    if not tokenizer.chat_template:
        return list(tokenizer(prompt)["input_ids"])
    messages = [{"role": "user", "content": prompt}]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])
