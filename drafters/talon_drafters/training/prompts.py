"""Prompts to train a drafter on: from files, from the target itself, from the documentation of Python's own library."""

import importlib
import inspect
import pkgutil
import random
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import attrs

from talon_core.basics import records
from talon_core.basics.paths import in_utf8, utf8

OPENINGS = {
    "": 6,  # whatever it likes
    "Summarize: ": 3,
    "Write a ": 2,
    "How ": 1,
    "What ": 2,
    "Who ": 2,
    "When ": 2,
    "Where ": 1,
    "Which ": 1,
    "Why ": 1,
    "Explain ": 1,
    "Describe ": 1,
    "Imagine you are ": 1,
    "Give me ": 1,
    "Compose ": 1,
    "A ": 2,
    "If ": 2,
    "Complete the code I provided.\n\ndef ": 4,
    "Write a Python function ": 1,
}
"""How users begin, and how often; the target goes on from there and so writes the rest of the prompt itself."""

SELF_WRITTEN = "self-written"
"""The source of prompts that the target has written itself."""

PARTS = 3
PART_WORDS = 80
"""Of a text to summarize: how many answers it is made of, and the fewest words of each."""


@attrs.frozen
class Example:
    """A prompt, and the answer where there is one already.

    Attributes:
        prompt: what a user says; it goes through the chat template.
        answer: text to learn from in the place of an answer by the target.
        source: where it comes from, for the model card.
    """

    prompt: str
    answer: str | None = None
    source: str = ""


def read_examples(file: Path) -> list[Example]:
    """Prompts of a file: JSON lines with `prompt` (and, it may be, `answer`) or `turns`, or text, one prompt a line.

    Raises:
        ValueError: for a line that is none of these; the sentence names it.
        OSError: if the file cannot be read.
    """
    examples = []
    # not splitlines: a JSON text may hold line separators that are no line ends
    for number, line in enumerate(utf8(file.read_bytes(), f"'{file}'").split("\n"), start=1):
        if not line.strip():
            continue
        if file.suffix.lower() != ".jsonl":
            examples.append(Example(line, source=file.stem))
            continue
        try:
            given = records.parsed(line)
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: {error}") from error
        fields: dict[str, Any] = given if isinstance(given, dict) else {"prompt": given}
        turns = fields.get("turns")
        prompt = fields.get("prompt") or (turns[0] if isinstance(turns, list) and turns else None)
        answer = fields.get("answer")
        if not _is_text(prompt) or not (answer is None or _is_text(answer)):
            raise ValueError(f"{file}, line {number} has no text under 'prompt' or 'turns', or an answer that is none")
        examples.append(Example(prompt, answer, str(fields.get("source", file.stem))))
    if not examples:
        raise ValueError(f"{file} holds no prompt")
    return examples


def _is_text(value: Any) -> TypeGuard[str]:
    """Whether it is a text that UTF-8 can write."""
    return isinstance(value, str) and in_utf8(value)


def library_examples(seed: int = 0) -> list[Example]:
    """Code to complete: signatures and docstrings of the running Python's standard library, in random order."""
    found: dict[str, Example] = {}
    for function in _library_functions():
        try:
            signature, doc = str(inspect.signature(function)), inspect.cleandoc(function.__doc__ or "")
        except (ValueError, TypeError):
            continue
        if not 40 <= len(doc) <= 900 or "<" in signature:
            continue
        body = textwrap.indent(f'"""{doc}\n"""', "    ")
        prompt = f"Complete the code I provided.\n\ndef {function.__name__}{signature}:\n{body}\n"
        found.setdefault(function.__name__, Example(prompt, source="python-library"))
    examples = sorted(found.values(), key=lambda example: example.prompt)
    random.Random(seed).shuffle(examples)
    return examples


def _library_functions() -> Iterator[Callable[..., Any]]:
    skipped = {"antigravity", "this", "idlelib", "test", "lib2to3", "turtledemo", "tkinter", "turtle"}
    for info in pkgutil.iter_modules():
        name = info.name
        if name not in sys.stdlib_module_names or name in skipped or name.startswith("__"):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = importlib.import_module(name)
        except Exception:  # a module that only another operating system has, or that wants a display
            continue
        for value in vars(module).values():
            if inspect.isclass(value) and value.__module__ == name:
                yield from (part for part in vars(value).values() if inspect.isfunction(part))
            elif inspect.isfunction(value) and value.__module__ == name:
                yield value


def chat_opening(tokenizer: Any) -> str:
    """What stands before a user's first word in the chat template.

    Raises:
        ValueError: for a tokenizer without a chat template.
    """
    if not tokenizer.chat_template:
        raise ValueError("this model's tokenizer has no chat template, so it cannot write prompts; give a prompt file")
    mark = "PROMPT"
    rendered = str(tokenizer.apply_chat_template([{"role": "user", "content": mark}], tokenize=False))
    return rendered[: rendered.index(mark)]


def openings(count: int, seed: int = 0) -> list[str]:
    """`count` openings from `OPENINGS`, drawn by their weights."""
    return random.Random(seed).choices(list(OPENINGS), weights=list(OPENINGS.values()), k=count)


def written_examples(texts: Sequence[str], source: str = SELF_WRITTEN) -> list[Example]:
    """Prompts from texts the target has written as a user, without empty, very short and repeated ones."""
    kept: dict[str, Example] = {}
    for text in texts:
        prompt = text.strip()
        if len(prompt.split()) >= 3:
            kept.setdefault(prompt, Example(prompt, source=source))
    return list(kept.values())


def summary_examples(answers: Sequence[str], count: int) -> list[Example]:
    """Long texts to summarize, each made of `PARTS` answers the target gave to other prompts.

    Args:
        answers: in a fixed order; short ones are left out.
        count: how many are wanted; fewer come back where there are too few answers.
    """
    long = [answer.strip() for answer in answers if len(answer.split()) >= PART_WORDS]
    parts = [long[first : first + PARTS] for first in range(0, len(long) - PARTS + 1, PARTS)]
    return [Example("Summarize: " + " ".join(part), source="own answers") for part in parts[:count]]
