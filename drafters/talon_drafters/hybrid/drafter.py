"""The running side of `hybrid`: its parts, each told of what concerns it, and one law out of what they say."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.chains import Chains
from talon_core.drafter import (
    Ahead,
    Committed,
    Drafter,
    DrafterSpec,
    Frontier,
    Part,
    Proposed,
    RanOn,
    Reading,
    Retriever,
)
from talon_core.engine.checked_drafter import checked_proposal, checked_resume, opened
from talon_core.inquiry import Inquirer
from talon_core.runtime.network import NetworkTarget
from talon_core.runtime.open_slots import OpenSlots
from talon_core.target import NodeDraws, StillWanted, Target, check_open
from talon_core.tree import FloatArray, IntArray, chain_of
from talon_drafters.hybrid.calibration import Trust
from talon_drafters.hybrid.mixture import Mixture, Row, Shares, candidates_of
from talon_drafters.hybrid.part_target import Columns, PartTarget

if TYPE_CHECKING:
    from talon_drafters.hybrid.options import HybridSpec

_ROOT = np.zeros(1, dtype=np.int64)


def open_hybrid(spec: "HybridSpec", target: Target) -> "HybridDrafter":
    """Open all parts; raises as `DrafterSpec.open` does."""
    models: list[Model] = []
    retrievers: list[tuple[str, Retriever]] = []
    for part in spec.parts:
        columns = Columns(())
        own = target
        if isinstance(target, NetworkTarget) and target.states:
            wanted = part.features(target.model.config.get_text_config().num_hidden_layers)
            columns = Columns.of(wanted, target.states)
            own = PartTarget(target, wanted, columns)
        drafter = opened(part, own)
        if isinstance(drafter, Inquirer):
            raise ValueError(  # noqa: TRY004 - the options are wrong
                f"of is '{spec.of}', and '{part.name}' asks the target beside its trees, which it can do only where it "
                "drafts alone; give it options with which it does not, or leave it out"
            )
        if isinstance(drafter, Retriever):
            retrievers.append((part.name, drafter))
        else:
            models.append(Model(part, drafter, columns))
    return HybridDrafter(spec, models, retrievers, target.vocab_size)


@attrs.frozen(eq=False)
class Model:
    """A part that has a law of its own at each node: a network, as a rule.

    Attributes:
        spec: its options.
        drafter: opened.
        columns: which of the target's features are its own.
    """

    spec: DrafterSpec
    drafter: Drafter
    columns: "Columns"


class _Text:
    """What is kept of one slot.

    Args:
        last: the last token of its text.
        models: how many there are.
        retrievers: likewise.

    Attributes:
        last: likewise.
        known: for each model, from which token of the prompt on it is to be told what the target has read.
        trust: one for each look-up.
        unasked: nodes of the current tree that the models were not asked at.
        heard: whether look-ups are heard in the current tree.
    """

    def __init__(self, last: int, models: int, retrievers: int) -> None:
        self.last = last
        self.known = [0] * models
        self.trust = [Trust() for _ in range(retrievers)]
        self.unasked: set[int] = set()
        self.heard = True


class HybridDrafter(Drafter):
    """Asks look-ups where one is heard at the root, and models where no look-up is sure.

    Args:
        options: how sure that is.
        models: the parts that have a law of their own.
        retrievers: the parts that look up, by name.
        vocab_size: the target's.
    """

    def __init__(
        self,
        options: "HybridSpec",
        models: Sequence[Model],
        retrievers: Sequence[tuple[str, Retriever]],
        vocab_size: int,
    ) -> None:
        self._options = options
        self._models = models
        self._names = [name for name, _ in retrievers]
        self._retrievers = [drafter for _, drafter in retrievers]
        self._vocab_size = vocab_size
        self._texts = OpenSlots[_Text]()
        self.sources = [*(model.spec.name for model in models), *self._names]
        depths = [part.max_depth for part in self._parts]
        self.uses_target = any(part.uses_target for part in self._parts)
        self.drafts_in_cache = any(part.drafts_in_cache for part in self._parts)
        self.max_depth = None if None in depths else max(depth for depth in depths if depth is not None)
        self.runs_on = len(models) == 1 and models[0].drafter.runs_on
        self._goes_on = all(retriever.goes_on for retriever in self._retrievers)

    @property
    def _parts(self) -> list[Drafter]:
        return [*(model.drafter for model in self._models), *self._retrievers]

    def describe(self) -> Mapping[str, object]:
        named = [(model.spec.name, model.drafter) for model in self._models]
        named += zip(self._names, self._retrievers, strict=True)
        return {f"{name}: {what}": said for name, part in named for what, said in part.describe().items()}

    @contextmanager
    def _sessions(self) -> Iterator[None]:
        with ExitStack() as stack:
            for part in self._parts:
                stack.enter_context(part.session())
            yield

    def session(self) -> AbstractContextManager[object]:
        return self._sessions()

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        for model in self._models:
            model.drafter.open(slot, prompt.copy(), room)
        self._open_text(slot, prompt, room)

    def _open_text(self, slot: int, prompt: IntArray, room: int) -> None:
        """Look-ups begin with the first token, so that they can be asked before each of the others."""
        for retriever in self._retrievers:
            retriever.open(slot, prompt[:1].copy(), room)
        self._texts[slot] = _Text(int(prompt[0]), len(self._models), len(self._retrievers))
        self._write(slot, prompt[1:])

    def resume(self, slot: int, prompt: IntArray, room: int, source: int, length: int) -> int:
        check_open([source], self._texts)
        known = [
            checked_resume(model.spec, model.drafter.resume(slot, prompt.copy(), room, source, length), length)
            for model in self._models
        ]
        self._open_text(slot, prompt, room)
        self._texts[slot].known = known
        return min([length, *known])

    def rows(self, rooms: Mapping[int, int]) -> int:
        return sum(part.rows(rooms) for part in self._parts)

    def close(self, slot: int) -> None:
        del self._texts[slot]
        for part in self._parts:
            part.close(slot)

    def read(self, parts: Mapping[int, Part]) -> None:
        check_open(parts, self._texts)
        for place, model in enumerate(self._models):
            told = {slot: self._untold(part, place, slot, model.columns) for slot, part in parts.items()}
            new = {slot: part for slot, part in told.items() if part is not None}
            if new:
                model.drafter.read(new)

    def _untold(self, part: Part, place: int, slot: int, columns: Columns) -> Part | None:
        """What a model has not taken over by `resume`; None if there is nothing."""
        skipped = max(self._texts[slot].known[place] - part.start, 0)
        if skipped and skipped >= part.count:
            return None
        features = columns.features(part.features)
        if features is not None and skipped:
            features = features[skipped:]
        return Part(part.start + skipped, part.count - skipped, features)

    def catch_up(self) -> bool:
        return any(part.catch_up() for part in self._parts)

    def commit(self, committed: Mapping[int, Committed]) -> None:
        check_open(committed, self._texts)
        for model in self._models:
            own = {
                slot: Committed(one.tokens.copy(), one.nodes.copy(), model.columns.features(one.features))
                for slot, one in committed.items()
            }
            model.drafter.commit(own)
        for slot, one in committed.items():
            self._write(slot, one.tokens)

    def is_ahead(self, slot: int) -> bool:
        return self.runs_on and self._models[0].drafter.is_ahead(slot)

    def ahead(self, slot: int) -> Ahead | None:
        return None if not self.runs_on or self._hears(slot, []) else self._models[0].drafter.ahead(slot)

    def run_on(
        self,
        slot: int,
        chains: Chains,
        left: int,
        ends: frozenset[int],
        draws: NodeDraws | None = None,
        wanted: StillWanted | None = None,
        drafts: Callable[[int], FloatArray] | None = None,
    ) -> RanOn:
        if not self.runs_on or self._hears(slot, []):
            return RanOn()

        def alone(new: Sequence[int]) -> bool:
            return not self._hears(slot, new) and (wanted is None or wanted(new))

        more = {} if drafts is None else {"drafts": drafts}
        return self._models[0].drafter.run_on(slot, chains, left, ends, draws, alone, **more)

    def _hears(self, slot: int, new: Sequence[int]) -> bool:
        """Whether any look-up is heard in a tree that begins behind these new tokens of a text, or may be."""
        text = self._texts[slot]
        if not self._options.heard or (new and not self._goes_on):
            return True
        frontier = Frontier(slot, chain_of([text.last, *new], np.zeros(len(new))), np.array([len(new)]), 1)
        return self._are_heard(text, [retriever.look_up(frontier)[0] for retriever in self._retrievers])

    def _are_heard(self, text: _Text, found: Sequence[Mapping[int, float]]) -> bool:
        """Whether any look-up is heard, by what each has found at a root."""
        heard, known = self._options.heard, zip(text.trust, found, strict=True)
        return not heard or any(own and trust.beside(own, 0.5) >= heard for trust, own in known)

    def _write(self, slot: int, tokens: IntArray) -> None:
        """The text goes on; before each token it is seen what look-ups would have said."""
        text = self._texts[slot]
        for token in tokens.tolist():
            for retriever, trust in zip(self._retrievers, text.trust, strict=True):
                guess = retriever.guess(slot, text.last)
                if guess is not None:
                    trust.learn(guess[1], guess[0] == token)
                retriever.commit({slot: Committed(np.array([token]), _ROOT)})
            text.last = token

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        found = [self._looked_up(one) for one in frontiers]
        asked = [self._asked(one, looked) for one, looked in zip(frontiers, found, strict=True)]
        said: list[list[list[Row]]] = [[[] for _ in one.nodes] for one in frontiers]  # by frontier, node and model
        alone: dict[int, Candidates] = {}
        proposed = [self._ask(source, frontiers, asked, said, alone) for source in range(len(self._models))]
        answers = [
            alone[index] if index in alone else self._mixed(one, looked, rows)
            for index, (one, looked, rows) in enumerate(zip(frontiers, found, said, strict=True))
        ]
        read = [one.reading for one in proposed if one.reading is not None]
        # all have read the same texts
        reading = Reading(max(one.tokens for one in read), sum(one.seconds for one in read)) if read else None
        passes, prepared = sum(one.draft_passes for one in proposed), any(one.prepared for one in proposed)
        return Proposed(answers, passes, reading, prepared, sum(one.ran_in for one in proposed))

    def _looked_up(self, frontier: Frontier) -> list[Sequence[Mapping[int, float]]]:
        """What each look-up has found after each node; nothing where it is not heard, or another source is asked."""
        nothing: list[Mapping[int, float]] = [{}] * len(frontier.nodes)
        text, root = self._texts[frontier.slot], len(frontier.tree) == 1
        text.heard = text.heard or root
        found = [
            retriever.look_up(frontier) if text.heard and frontier.source in (None, source) else nothing
            for source, retriever in enumerate(self._retrievers, start=len(self._models))
        ]
        if root and self._models and frontier.source is None:
            text.heard = self._are_heard(text, [own for (own,) in found])
        return found if text.heard else [nothing] * len(found)

    def _asked(self, frontier: Frontier, found: Sequence[Sequence[Mapping[int, float]]]) -> IntArray:
        """The places in a frontier of the nodes that the models are asked at."""
        if frontier.source is not None:
            return np.arange(len(frontier.nodes))
        text, tree = self._texts[frontier.slot], frontier.tree
        if len(tree) == 1:
            text.unasked.clear()
        places = []
        for place, node in enumerate(frontier.nodes.tolist()):
            shares, _ = self._found(text, [looked[place] for looked in found], None)
            if int(tree.parents[node]) in text.unasked or max(shares.values(), default=0.0) >= self._options.sure:
                text.unasked.add(node)
            else:
                places.append(place)
        return np.array(places, dtype=np.int64)

    def _ask(
        self,
        source: int,
        frontiers: Sequence[Frontier],
        asked: Sequence[IntArray],
        said: Sequence[Sequence[list[Row]]],
        alone: dict[int, Candidates],
    ) -> Proposed:
        """Ask a model at nodes of the frontiers and add to what was said there; returns its answer.

        Where it is the only model and no look-up is heard, that is the answer to a frontier, and is noted in `alone`.
        """
        model = self._models[source]
        places: list[tuple[int, IntArray]] = []
        for index, (one, own) in enumerate(zip(frontiers, asked, strict=True)):
            if one.source not in (None, source):
                continue
            if model.drafter.max_depth is not None:
                own = own[one.tree.depths[one.nodes[own]] < model.drafter.max_depth]
            if len(own):
                places.append((index, own))
        if not places:
            return Proposed([])
        parts = [
            attrs.evolve(frontiers[index], nodes=frontiers[index].nodes[own], source=None) for index, own in places
        ]
        proposed = checked_proposal(model.spec, model.drafter.propose(parts), len(parts))
        for (index, own), answer in zip(places, proposed.candidates, strict=True):
            one = frontiers[index]
            if len(self._models) == 1 and len(own) == len(one.nodes) and not self._texts[one.slot].heard:
                alone[index] = answer
                continue
            for row, place in enumerate(own.tolist()):
                known = Row.of(answer, row)
                if known is not None:
                    said[index][place].append(known)
        return proposed

    def _mixed(
        self, frontier: Frontier, found: Sequence[Sequence[Mapping[int, float]]], said: Sequence[list[Row]]
    ) -> Candidates:
        text, mixtures = self._texts[frontier.slot], []
        for place, rows in enumerate(said):
            row = Row.mean(rows, frontier.width, self._vocab_size)
            shares, rest = self._found(text, [looked[place] for looked in found], None if row is None else row.best)
            mixtures.append(Mixture(shares, rest, row, self._vocab_size))
        return candidates_of(mixtures, frontier, self._options.least)

    def _found(
        self, text: _Text, looked: Sequence[Mapping[int, float]], model_best: float | None
    ) -> tuple[Shares, float]:
        """What look-ups put on tokens at one node, and what they leave.

        Args:
            text: of the slot.
            looked: what each has found.
            model_best: as in `Trust.beside`; None where no model says anything.
        """
        shares: Shares = {}
        rest = 1.0
        for trust, own in zip(text.trust, looked, strict=True):
            if not own:
                continue
            weight = trust.alone(own) if model_best is None else trust.beside(own, model_best)
            unit = rest * weight / sum(own.values())
            for token, share in own.items():
                shares[token] = shares.get(token, 0.0) + unit * share
            rest *= 1.0 - weight
        return shares, rest
