"""The prompts that were decoded slowest and fastest, and their rounds, small enough for a page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from talon_core.bench.measurement import Measurement
from talon_core.bench.methods import PLAIN
from talon_core.bench.prompts import read_sets
from talon_core.bench.results import Results
from talon_core.bench.rounds import KeptRounds
from talon_core.bench.schedule import Unit
from talon_core.pictures.render import percent, what_came_of
from talon_core.report.figures import Extreme, Step, Walk, Walks
from talon_core.report.texts import Texts
from talon_core.rounds import PARTS, Round

MOST_NODES = 40
"""Nodes of a tree that are shown: the accepted ones and the likeliest."""
MOST_ROUNDS = 150
"""Rounds of a text that can be stepped through."""
MOST_CHARACTERS = 400
"""Of a prompt or an answer."""

Questions = Mapping[tuple[str, int, int], str]
"""The text of a prompt by its set, its index there and its turn."""


@attrs.frozen
class Chosen:
    """Which prompts are told of.

    Attributes:
        by: the method by whose speed they were chosen.
        units: with whether it is one of the fastest, and the method's ratio to plain decoding; the fastest first.
    """

    by: str
    units: Mapping[Unit, tuple[bool, float]]


def choose(measured: Mapping[str, Sequence[Measurement]], by: str, most: int) -> Chosen:
    """The fastest and the slowest prompts of a method, by its speed to plain decoding in the first repetition.

    Args:
        measured: by method.
        by: the method.
        most: of either.
    """
    plain = {each.unit: _speed(each) for each in measured[PLAIN]}
    ratios = {
        each.unit: _speed(each) / plain[each.unit]
        for each in measured[by]
        if not each.repetition and each.unit in plain
    }
    ranked = sorted(ratios, key=lambda unit: (-ratios[unit], unit))
    fast = ranked[: min(most, (len(ranked) + 1) // 2)]
    slow = ranked[len(fast) :][-most:] if most else []
    return Chosen(by, {unit: (unit in fast, ratios[unit]) for unit in (*fast, *slow)})


def _speed(of: Measurement) -> float:
    return float(of.stats["new_tokens"] / of.stats["seconds"])


class Steps:
    """Makes what can be stepped through out of kept rounds, text by text."""

    def __init__(self, chosen: Chosen, measured: Mapping[str, Sequence[Measurement]], texts: Texts) -> None:
        self._chosen, self._texts = chosen, texts
        self._measured = {(each.unit, method): each for method, of in measured.items() for each in of}
        self._walks: dict[Unit, dict[str, Walk]] = {unit: {} for unit in chosen.units}
        self._words: dict[str, int] = {}

    def add(self, kept: KeptRounds) -> None:
        """Take the rounds of one text, if it was chosen and something was drafted."""
        if kept.unit not in self._walks or all(len(one.tree) == 1 for one in kept.rounds):
            return
        pieces = self._texts.pieces([token for one in kept.rounds for token in one.tokens.tolist()])
        steps, at = [], 0
        for one in kept.rounds[:MOST_ROUNDS]:
            steps.append(self._step(one, pieces[at : at + len(one.tokens)]))
            at += len(one.tokens)
        own, plain = (_speed(self._measured[kept.unit, method]) for method in (kept.method, PLAIN))
        self._walks[kept.unit][kept.method] = Walk(kept.method, steps, len(kept.rounds), own, own / plain)

    def _step(self, one: Round, pieces: Sequence[str]) -> Step:
        path, own = what_came_of(one)
        tree, accepted = one.tree, path.tolist()
        shown = sorted({0, *accepted, *tree.best(MOST_NODES).tolist()})
        place = {node: number for number, node in enumerate(shown)}
        parents = [place.get(parent, -1) for parent in tree.parents[shown].tolist()]
        logp = tree.path_logp[shown] - tree.path_logp[[max(0, parent) for parent in tree.parents[shown].tolist()]]
        return Step(
            parents=parents,
            tokens=[self._word(token) for token in tree.tokens[shown].tolist()],
            shares=[0 if (said := percent(each)) == "<1%" else int(said[:-1]) for each in logp.tolist()],
            path=[place[node] for node in accepted],
            own=None if own is None else self._word(own),
            pieces=list(pieces),
            nodes=len(tree),
            milliseconds={part: round(1000 * getattr(one, f"{part}_seconds"), 3) for part in PARTS},
            draft_passes=one.draft_passes,
        )

    def _word(self, token: int) -> int:
        return self._words.setdefault(self._texts.token(token), len(self._words))

    def walks(self, methods: Sequence[str], questions: Questions) -> Walks:
        """All that was taken.

        Args:
            methods: in the order in which they are offered.
            questions: texts of prompts, as far as they are known.
        """
        found = []
        for unit, (fast, ratio) in self._chosen.units.items():
            plain = self._measured[unit, PLAIN]
            answer = "".join(self._texts.pieces(plain.token_ids)) if self._texts.known else None
            asked = questions.get((unit.set, unit.prompt, unit.turn))
            walks = [self._walks[unit][method] for method in methods if method in self._walks[unit]]
            found.append(
                Extreme(
                    *(unit.set, unit.prompt, unit.turn, plain.question_id, fast, ratio),
                    text=None if asked is None else cut(asked),
                    answer=None if answer is None else cut(answer),
                    walks=walks,
                )
            )
        return Walks(self._chosen.by, found, [*self._words])


def cut(text: str) -> str:
    """A text, shortened where it is long."""
    text = text.strip()
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1].rstrip() + "…"


def read_questions(path: Path, results: Results) -> dict[tuple[str, int, int], str]:
    """What the prompts of a run say.

    Args:
        path: the file or folder that the run's prompts came from.
        results: the run.

    Raises:
        ValueError: if a set of the run is not there, or another one by its checksum.
        OSError: if a file cannot be read.
    """
    there = {each.name: each for each in read_sets(path)}
    found: dict[tuple[str, int, int], str] = {}
    for own in results.manifest["settings"]["sets"]:
        _check_set(own, there, path)
        for number, prompt in enumerate(there[own["name"]].prompts):
            found.update({(own["name"], number, turn): text for turn, text in enumerate(prompt.turns)})
    return found


def _check_set(own: Mapping[str, Any], there: Mapping[str, Any], path: Path) -> None:
    if own["name"] not in there:
        raise ValueError(f"'{path}' has no set '{own['name']}'; give the prompts that the run was made with")
    if there[own["name"]].sha256 != own["sha256"]:
        raise ValueError(
            f"the set '{own['name']}' in '{path}' is not the one of the run: its sha256 is "
            f"{there[own['name']].sha256[:8]} and was {own['sha256'][:8]}; give the prompts that the run was made with"
        )
