"""A drafter whose answers are noted while a text is recorded."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drafter import Committed, Drafter, DrafterSpec, Frontier, Part, Proposed
from talon_core.engine.checked_candidates import checked_candidates
from talon_core.engine.checked_drafter import checked_proposal
from talon_core.inquiry import Inquirer
from talon_core.laws import Laws
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.target import Target
from talon_core.trace.columns import NO_ROW, Rows
from talon_core.trace.kept_laws import KeptLaws
from talon_core.tree import FloatArray, IntArray, TokenTree


class Notes:
    """The rows of one text while they come in.

    Args:
        width: candidates of each node that are kept.
        layers: of a position, at most.
        laws: where whole laws go; None where none are kept.
    """

    def __init__(self, width: int, layers: int, laws: KeptLaws | None = None) -> None:
        self.laws = laws
        self._width, self._layers = width, layers
        self._starts: list[int] = [0]
        self._above: list[int] = []
        self._nodes: list[int] = []
        self._tokens: list[IntArray] = []
        self._logp: list[FloatArray] = []
        self._whole: list[bool] = []
        self._passes: list[list[int]] = []
        self._row_of: dict[int, int] = {}  # by node of the current tree

    def begin(self) -> None:
        """A new position."""
        self._row_of = {}
        self._passes.append([])

    def note(self, frontier: Frontier, candidates: Candidates, passes: int) -> None:
        """A layer of the current position."""
        tree = frontier.tree
        self._passes[-1].append(passes)
        offered = candidates.tokens.shape[1]
        tokens = np.full((len(frontier.nodes), self._width), -1, dtype=np.int64)
        logp = np.full(tokens.shape, -np.inf)
        tokens[:, :offered], logp[:, :offered] = candidates.tokens, candidates.logp
        for row, node in enumerate(frontier.nodes.tolist()):
            self._row_of[node] = len(self._above)
            self._above.append(self._row_of[int(tree.parents[node])] if node else NO_ROW)
            self._nodes.append(int(tree.tokens[node]))
            self._whole.append(offered < frontier.width or bool((candidates.tokens[row] < 0).any()))
            if self.laws is not None:
                self.laws.add("drafter", candidates.law(row))
        self._tokens.append(tokens)
        self._logp.append(logp)

    def end(self) -> None:
        """The current position is over."""
        self._starts.append(len(self._above))

    @property
    def latest_are_whole(self) -> bool:
        """Whether the rows of the current position hold all that the drafter knows there."""
        return all(self._whole[self._starts[-1] :])

    @property
    def drafted_from(self) -> list[int]:
        """The nodes of the current tree that have rows, in the order of their rows."""
        return [*self._row_of]

    def rows(self) -> Rows:
        """All rows so far."""
        passes = np.zeros((len(self._passes), self._layers), dtype=np.int64)
        for position, own in enumerate(self._passes):
            passes[position, : len(own)] = own
        shape = (0, self._width)
        return Rows(
            starts=np.array(self._starts, dtype=np.int64),
            above=np.array(self._above, dtype=np.int64),
            nodes=np.array(self._nodes, dtype=np.int64),
            tokens=np.concatenate([np.empty(shape, dtype=np.int64), *self._tokens]),
            logp=np.concatenate([np.empty(shape), *self._logp]),
            whole=np.array(self._whole, dtype=bool),
            passes=passes,
        )


@attrs.frozen(eq=False)
class Observing(DrafterSpec):
    """The options of a drafter whose answers are noted.

    Attributes:
        spec: the drafter's own.
        notebook: where the notes of the text that is recorded are.
    """

    name = "observing"
    spec: DrafterSpec
    notebook: "Notebook"

    def features(self, num_layers: int) -> tuple[int, ...]:
        return self.spec.features(num_layers)

    def for_model(self, model: Any) -> DrafterSpec:
        return attrs.evolve(self, spec=self.spec.for_model(model))

    def open(self, target: Target) -> Drafter:
        drafter = self.spec.open(target)
        if isinstance(drafter, Inquirer):
            raise ValueError(  # noqa: TRY004 - the options are wrong
                f"drafter '{self.spec.name}' with these options asks the target beside every tree, and what it offers "
                "depends on the answers; there are none while a trace is recorded, so it cannot be recorded"
            )
        return Observed(drafter, self.notebook, self.spec, target.vocab_size)


@attrs.define(eq=False)
class Notebook:
    """Where the notes of the text that is recorded are.

    Attributes:
        notes: they; None while nothing is recorded.
    """

    notes: Notes | None = None


class Observed(Drafter):
    """A drafter whose answers are noted.

    Args:
        drafter: it.
        notebook: where to.
        spec: its options, which errors name.
        vocab_size: the target's.
    """

    def __init__(self, drafter: Drafter, notebook: Notebook, spec: object, vocab_size: int) -> None:
        self.drafter = drafter
        self.max_depth = drafter.max_depth
        self._notebook, self._spec, self._vocab_size = notebook, spec, vocab_size

    def session(self) -> AbstractContextManager[object]:
        return self.drafter.session()

    def describe(self) -> Mapping[str, object]:
        return self.drafter.describe()

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self.drafter.open(slot, prompt, room)

    def resume(self, slot: int, prompt: IntArray, room: int, source: int, length: int) -> int:
        return self.drafter.resume(slot, prompt, room, source, length)

    def read(self, parts: Mapping[int, Part]) -> None:
        self.drafter.read(parts)

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        proposed = self.drafter.propose(frontiers)
        notes = self._notebook.notes
        if notes is not None:
            (frontier,) = frontiers
            checked = checked_proposal(self._spec, proposed, 1)
            asked = frontier.tree, frontier.nodes, self._vocab_size, frontier.width
            notes.note(frontier, checked_candidates(self._spec, checked.candidates[0], *asked), checked.draft_passes)
        return proposed

    def commit(self, committed: Mapping[int, Committed]) -> None:
        self.drafter.commit(committed)

    def close(self, slot: int) -> None:
        self.drafter.close(slot)


@attrs.frozen(eq=False)
class NotesLaws(AcceptanceRule):
    """Goes on by one token, drawn from the target's law, and notes that law at all nodes that were drafted from.

    Attributes:
        notebook: where the notes are.
    """

    name = "notes-laws"
    exact_for = frozenset({"any"})
    looks_ahead = True
    notebook: Notebook

    def walk(self, tree: TokenTree, laws: Laws, choices: Choices) -> Accepted:
        notes = self.notebook.notes
        if notes is not None and notes.laws is not None:
            for node in notes.drafted_from:
                notes.laws.add("target", laws.at(node))
        return Accepted(np.zeros(1, dtype=np.int64), laws.draw(0, choices))
