"""Prompt sets: files of prompts, each file a set."""

import hashlib
import json
import unicodedata
from pathlib import Path
from typing import Any

import attrs

from talon_core.basics.paths import about, in_utf8, utf8
from talon_core.errors import written

ENDINGS = (".jsonl", ".txt")
"""How names of prompt files end, in any case."""

UNREADABLE = "the prompt file cannot be read"


@attrs.frozen
class Prompt:
    """One prompt, or a conversation.

    Attributes:
        turns: what the user says, one after the other; at least one, none of them empty.
        question_id: what the file calls it; None if it says nothing.
        line: of the file, from 1 on; None where a file is one prompt.
    """

    turns: tuple[str, ...]
    question_id: int | str | None = None
    line: int | None = attrs.field(default=None, eq=False)


@attrs.frozen
class PromptSet:
    """The prompts of one file.

    Attributes:
        name: the file's name without its ending.
        file: where it was read.
        sha256: of the whole file's bytes.
        prompts: those that are used.
        total: how many the file has.
    """

    name: str
    file: str
    sha256: str
    prompts: tuple[Prompt, ...]
    total: int

    def as_dict(self) -> dict[str, Any]:
        """What the manifest has of it."""
        return {"name": self.name, "sha256": self.sha256, "prompts": len(self.prompts), "total": self.total}


def read_sets(path: Path, limit: int | None = None) -> list[PromptSet]:
    """Read a file, or every `*.jsonl` and `*.txt` file of a folder in the order of their names; endings in any case.

    A line of a `.jsonl` file is an object with `turns` (Spec-Bench's form) or `prompt`, or a text; a `.txt` file is one
    prompt.

    Args:
        path: the file or the folder.
        limit: take only the first so many of each set.

    Raises:
        ValueError: if there are no prompts, a line is none, or two files have the same name.
        OSError: if a file cannot be read.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS and file.is_file())
        if not files:
            raise ValueError(f"the folder '{path}' has no prompts; they are in files *.jsonl or *.txt")
    sets: dict[str, PromptSet] = {}
    for file in files:
        found = read_set(file, limit)
        if found.name in sets:
            raise ValueError(f"'{sets[found.name].file}' and '{file}' are both the set '{found.name}'; rename one")
        sets[found.name] = found
    return list(sets.values())


def read_set(file: Path, limit: int | None = None) -> PromptSet:
    """Read one file; see `read_sets`."""
    if file.suffix.lower() not in ENDINGS:
        raise ValueError(f"'{file}' is no prompt file; its name must end in .jsonl or .txt")
    if not _has_a_name(file.stem):
        raise ValueError(
            f"the prompt file {written(file.name)} names a set that cannot be shown; rename it, with a letter or digit "
            "and without control characters"
        )
    with about(file, UNREADABLE):
        data = file.read_bytes()
    text = utf8(data, f"'{file}'")
    if file.suffix.lower() == ".txt":
        prompts = [Prompt((text,))] if text.strip() else []
    else:  # not splitlines: a JSON text may hold line separators that are no line ends
        lines = enumerate(text.split("\n"), start=1)
        prompts = [_parsed(line, number, file) for number, line in lines if line.strip()]
    if not prompts:
        raise ValueError(f"'{file}' is empty; it must hold at least one prompt")
    used = prompts if limit is None else prompts[:limit]
    return PromptSet(file.stem, str(file), hashlib.sha256(data).hexdigest(), tuple(used), len(prompts))


def _has_a_name(stem: str) -> bool:
    """Whether there is something to see in a set's name, and nothing that a terminal obeys or UTF-8 cannot write."""
    harmless = not any(unicodedata.category(each) in ("Cc", "Cs") for each in stem)
    return harmless and any(each.isprintable() and not each.isspace() for each in stem)


def _parsed(line: str, number: int, file: Path) -> Prompt:
    where = f"line {number} of '{file}'"
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"{where} is not JSON; write an object with turns or prompt, or a text in quotes") from None
    question_id = None
    if isinstance(value, dict):
        question_id = value.get("question_id")
        turns = value["turns"] if "turns" in value else [value.get("prompt")]
    else:
        turns = [value]
    if not isinstance(turns, list) or not turns or not all(_is_text(turn) for turn in turns):
        raise ValueError(
            f'{where} holds no prompt; write {{"turns": [text, ...]}}, {{"prompt": text}} or a text in quotes, '
            "where no text is empty"
        )
    if isinstance(question_id, str) and not in_utf8(question_id):
        raise ValueError(f"{where} has a question_id that UTF-8 cannot write: half a surrogate pair; write another one")
    named = isinstance(question_id, int | str) and not isinstance(question_id, bool)
    return Prompt(tuple(turns), question_id if named else None, number)


def _is_text(value: Any) -> bool:
    """Whether it is a text with something in it, which UTF-8 can write."""
    return isinstance(value, str) and bool(value.strip()) and in_utf8(value)
