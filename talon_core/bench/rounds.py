"""The rounds of a run, trees and all: `rounds.jsonl` in its folder, which `talon bench run --rounds` writes."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from talon_core.basics import records
from talon_core.basics.paths import UNFINISHED, about, write_whole
from talon_core.bench.schedule import Unit
from talon_core.rounds import Round

ROUNDS = "rounds.jsonl"


@attrs.frozen
class KeptRounds:
    """Every round of one method on one prompt.

    Attributes:
        set: the prompt set's name.
        prompt: the prompt's index in its set.
        turn: the turn's index in its conversation.
        repetition: how often it was measured before.
        method: the method's name.
        rounds: in order; the laws of draws are left out, as in every `Round`.
    """

    set: str
    prompt: int
    turn: int
    repetition: int
    method: str
    rounds: Sequence[Round]

    @property
    def unit(self) -> Unit:
        """What was decoded."""
        return Unit(self.set, self.prompt, self.turn, self.repetition)

    def as_dict(self) -> dict[str, Any]:
        """It as plain data, for JSON; `from_dict` reads it."""
        return records.fields_as_plain(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "KeptRounds":
        """What `as_dict` gave, as it was.

        Raises:
            ValueError: if it is no such thing; the sentence names the field and the value.
        """
        found: KeptRounds = records.make(cls, data, READERS)
        return found


READERS: Mapping[str, records.Reader] = {
    "set": records.words,
    "prompt": records.whole,
    "turn": records.whole,
    "repetition": records.whole,
    "method": records.words,
    "rounds": records.several(Round.from_dict),
}


def read_rounds(folder: Path) -> Iterator[KeptRounds]:
    """What a run kept, line by line; a line at the end that was not written in full is left out.

    Raises:
        ValueError: if the run kept no rounds, or a line is none.
    """
    file = folder / ROUNDS
    if not file.is_file():
        raise ValueError(f"there is no {ROUNDS} in '{folder}'; talon bench run --rounds writes one")
    for number, line in enumerate(_lines(file), start=1):
        try:
            yield KeptRounds.from_dict(records.parsed(line))
        except ValueError as error:
            raise ValueError(f"line {number} of '{file}' holds no rounds of this version: {error}") from error


def append_rounds(folder: Path, kept: Iterable[KeptRounds]) -> None:
    """Add the lines of a unit."""
    text = "".join(json.dumps(each.as_dict(), ensure_ascii=False, allow_nan=False) + "\n" for each in kept)
    file = folder / ROUNDS
    with about(file), file.open("a", encoding="utf-8", newline="\n") as opened:
        opened.write(text)


def forget_rounds(folder: Path, measured: set[Unit], methods: int = 0) -> None:
    """Take away what is not of these units: it is decoded again, because its measurements are not there in full.

    Args:
        folder: of the run.
        measured: what is there in full.
        methods: how many have their rounds kept.

    Raises:
        ValueError: if rounds of what was measured are not there, which are written before it.
    """
    file = folder / ROUNDS
    lines = [*_lines(file)] if file.exists() else []
    kept = [line for line in lines if _unit(line) in measured]
    missing = len(measured) * methods - len(kept)
    if missing > 0:
        raise ValueError(
            f"'{file}' has not the rounds of {missing} of {len(measured) * methods} measurements; it was changed, so "
            "give another folder"
        )
    if not file.exists():
        return
    if len(kept) < len(lines) or not file.read_bytes().endswith(b"\n"):
        write_whole(file, "".join(line + "\n" for line in kept), UNFINISHED)


def _unit(line: str) -> Unit | None:
    try:
        data = records.dictionary(records.parsed(line))
        return Unit(*(READERS[field](data.get(field)) for field in ("set", "prompt", "turn", "repetition")))
    except ValueError:
        return None


def _lines(file: Path) -> Iterator[str]:
    with file.open(encoding="utf-8", errors="replace", newline="\n") as opened:
        for line in opened:
            if line.endswith("\n"):
                yield line[:-1]
