"""Making a profile: the engine decodes trees of all sizes, as it always does, and what its parts take is noted."""

from collections import defaultdict
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import attrs
import numpy as np

from talon_core.bench.environment import describe_environment, describe_session
from talon_core.decoding.loading import decoder_for_model
from talon_core.defaults import EXACT_RULE
from talon_core.engine.engine import Engine
from talon_core.engine.plain import NoDrafter
from talon_core.engine.sequence import Sequence
from talon_core.plugins.parts import Parts, resolve
from talon_core.plugins.registry import Registry, load_registry
from talon_core.profiles.grid import Sizes
from talon_core.profiles.profile import AXES, Profile, Table
from talon_core.profiles.shapes import LAYERS, Full, Passes, Shape, Shaped
from talon_core.request import Request
from talon_core.rounds import Round
from talon_core.sampling import temperature_sampling

WARM_UP = 3
"""Rounds of each context and batch that are not counted."""

PERIOD = 24
"""After so many tokens a prompt repeats itself, so that some of what is drafted is accepted."""

PAUSES = (3, 12)
"""Rounds without a draft before one with it: then the drafter is told of as many tokens more at once."""

CHAINS, CHAINED = (1, 2, 3), 8
"""Drafted tokens of trees that are chains, and rounds in which each such tree is verified."""

READS = 5
"""How often reading a prompt is timed at most: it takes long."""

BY_CHANCE = ("commit", "tell")
"""Tables whose sizes come as the text has them."""

OFTEN = 3
"""So often such a size must have come to be believed: the last two decide what is taken for larger ones."""


@attrs.frozen
class ProfilePlan:
    """Which sizes are measured; all at least 1, and rising.

    Attributes:
        nodes: of each tree.
        contexts: tokens of the texts.
        batches: texts that share a pass.
        rows: of a drafter's layer, for each tree.
        widths: candidates of each row.
        repetitions: of everything.
        temperature: of the texts; 0 for greedy ones.
    """

    nodes: tuple[int, ...] = (1, 2, 4, 8, 16, 24, 32, 48, 64)
    contexts: tuple[int, ...] = (64, 256, 1024)
    batches: tuple[int, ...] = (1, 4)
    rows: tuple[int, ...] = (1, 2, 4, 8, 16)
    widths: tuple[int, ...] = (4, 16)
    repetitions: int = 5
    temperature: float = 0.0

    def rounds(self, rng: np.random.Generator) -> list[Shape]:
        """One repetition: each number of nodes and each kind of layer at least once, in an order of its own."""
        layers = [(rows, width) for rows in self.rows for width in self.widths]
        count = max(len(self.nodes), len(layers))
        nodes = rng.permutation(np.resize(self.nodes, count)).tolist()
        chosen = rng.permutation(count) % len(layers)
        return [Shape(many, *layers[place]) for many, place in zip(nodes, chosen.tolist(), strict=True)]

    def pauses(self) -> list[Shape]:
        """Behind the rounds of a repetition: a round with a draft after each of `PAUSES`."""
        drafted = Shape(1, self.rows[0], self.widths[0], layers=1)
        rests = [[Shape(drafts=False, rests=left) for left in range(pause - 1, -1, -1)] for pause in PAUSES]
        return [shape for pause in rests for shape in (*pause, drafted)]

    def chains(self) -> list[list[Shape]]:
        """Of a text of its own, where passes are run ahead: the rounds of each of `CHAINS`."""
        width = min(self.widths)
        return [[Shape(1 + length, 1, width, chains=left) for left in range(CHAINED, 0, -1)] for length in CHAINS]

    @property
    def tokens(self) -> int:
        """Most new tokens of a text while it is measured."""
        rounds = max(len(self.nodes), len(self.rows) * len(self.widths)) * self.repetitions
        alone = len(self.pauses()) * self.repetitions  # of these only the root is verified
        return (WARM_UP + rounds) * (LAYERS + 2) + alone + 1

    @property
    def tokens_ahead(self) -> int:
        """Likewise of a text whose rounds are run ahead."""
        each = sum(shape.nodes for shapes in self.chains() for shape in shapes)
        return LAYERS + 2 + each * (1 + self.repetitions) + 1

    def check(self, context_length: int | None, ahead: bool = False) -> None:
        """Refuse what a model has no room for.

        Args:
            context_length: of the model; None where it knows no end.
            ahead: whether rounds are run ahead, too.

        Raises:
            ValueError: if a context is too long; the sentence says what would be right.
        """
        tokens = max(self.tokens, self.tokens_ahead) if ahead else self.tokens
        if context_length is not None and max(self.contexts) + tokens > context_length:
            raise ValueError(
                f"a context of {max(self.contexts)} tokens, and {tokens} new ones for the rounds that are timed, "
                f"do not fit the model's context of {context_length}; give shorter contexts or fewer repetitions"
            )


class _Noted:
    """Seconds by kind and sizes, as often as they came."""

    def __init__(self) -> None:
        self.times: dict[str, dict[Sizes, list[float]]] = {kind: defaultdict(list) for kind in AXES}

    def add(self, kind: str, sizes: Sizes, seconds: float) -> None:
        self.times[kind][sizes].append(max(0.0, seconds))

    def table(self, kind: str) -> Table:
        found = self.times[kind]
        if kind in BY_CHANCE:
            often = {sizes: times for sizes, times in found.items() if len(times) >= OFTEN}
            found = often or found
        return Table(kind, {sizes: median(times) for sizes, times in found.items()})


class Measuring:
    """A loaded model with a drafter, of which a profile is made.

    Args:
        wanted: which sizes.
        model: a transformers causal LM.
        tokenizer: its tokenizer; None if there is none.
        drafter: as it is written; None for none.
        named: what the model is called.
        seed: of the prompts and of the order.
        registry: where parts are looked up; what is installed by default.

    Raises:
        ValueError: if the drafter does not fit the model, or the sizes do not.
    """

    def __init__(
        self,
        wanted: ProfilePlan,
        model: Any,
        tokenizer: Any,
        drafter: str | None,
        named: str,
        seed: int = 0,
        registry: Registry | None = None,
    ) -> None:
        self.wanted, self._spec, self._named = wanted, drafter, named
        self._model, self._tokenizer = model, tokenizer
        self._shape = Shape()
        most = max(*wanted.nodes, 1 + max(CHAINS))
        layers = LAYERS * max(wanted.rows) * max(wanted.widths)
        self._policy = Shaped(most, 1 + max(most, *wanted.rows, *wanted.widths) + layers, self._shape)
        parts = Parts(policy=None) if drafter is None else Parts(drafter, self._policy, EXACT_RULE)
        resolved = resolve(parts, registry if registry is not None else load_registry())
        self._decoder = decoder_for_model(model, tokenizer, resolved)
        wanted.check(self._decoder.target.context_length, self._decoder.engine.parts.chains_on)
        self._rng = np.random.default_rng(seed)
        self._noted = _Noted()
        self._passes: dict[int, list[tuple[int, int, int, float]]] = defaultdict(list)  # by context at the beginning
        self._tells: list[tuple[int, int, float]] = []  # tokens, width and seconds of a `tell` and the layer after it
        self._left: list[tuple[int, int, float]] = []  # of a round with a draft: layers, tokens, and what is left

    def run(self, name: str, report: Callable[[int, int], None] = lambda done, all_: None) -> Profile:
        """Measure.

        Args:
            name: what the profile is called.
            report: called with the number of contexts and batches that are measured and of all, at the start and after
                each.
        """
        wanted, noted = self.wanted, self._noted
        places = [(context, batch) for context in wanted.contexts for batch in wanted.batches]
        started = perf_counter()
        report(0, len(places))
        for done, (context, batch) in enumerate(places, start=1):
            self._measure(context, batch)
            report(done, len(places))
        environment = describe_environment(self._model, self._tokenizer, self._decoder.target)
        model = {"name": self._named, **{key: environment.pop(key) for key in ("parameters", "weights_sha256")}}
        made = {**describe_session(), "seconds": round(perf_counter() - started, 1), **attrs.asdict(wanted)}
        for those in self._passes.values():
            middle = round(median(context for _, context, _, _ in those))  # it grows while it is measured
            for nodes, _, batch, seconds in those:
                noted.add("verify", (nodes, middle, batch), seconds)
        if self._spec is None:
            noted.times["draft"].clear()
        layer, each = noted.table("draft").fit, self._beside_layer()
        if layer is not None:
            for tokens, width, seconds in self._tells:
                noted.add("tell", (tokens,), seconds - layer.at(1, width))
        noted.times["draft"] = {size: [took + each for took in times] for size, times in noted.times["draft"].items()}
        for layers, tokens, seconds in self._left:
            noted.add("commit", (tokens,), seconds - layers * each)
        tables = {f"{kind}_table": noted.table(kind) for kind in AXES}
        temperature = made.pop("temperature")
        return Profile(name, "measured", environment, model, self._spec, made, **tables, temperature=temperature)

    def _measure(self, context: int, batch: int) -> None:
        """All sizes of trees and layers, at one context and batch."""
        target, given = self._decoder.target, self._decoder.drafter
        drafter = Full(given if given is not None else NoDrafter(), target.vocab_size)
        passes = Passes()
        engine = Engine(target, self._decoder.rule, self._policy, drafter, costs=passes, allocator=None, keep=False)
        with engine.session():
            if batch == 1:
                self._read(engine, drafter, context)
                self._run_ahead(engine, drafter, context)
            sequences = self._submitted(engine, context, batch)
            for _ in range(WARM_UP):
                shape = Shape(max(self.wanted.nodes), max(self.wanted.rows), max(self.wanted.widths))
                self._step(engine, sequences, shape)
            passes.all.clear()
            told: list[tuple[int, float]] = []  # since the drafter was last asked
            rested: list[float] = []  # what each round of a pause took besides its pass
            for _ in range(self.wanted.repetitions):
                for shape in (*self.wanted.rounds(self._rng), *(self.wanted.pauses() if batch == 1 else ())):
                    drafter.layers.clear()
                    drafter.reading = None
                    seconds, rounds = self._step(engine, sequences, shape)
                    for rows, width, took in drafter.layers[1:]:
                        self._noted.add("draft", (rows, width), took)
                    for one in rounds:
                        self._noted.add("accept", (len(one.tree),), one.accept_seconds)
                    if batch == 1:
                        if drafter.layers:
                            self._told(told, drafter)
                            told = []
                        told.append(_told_in(rounds[0]))
                        if shape.drafts:
                            self._commit(rounds[0], seconds, len(drafter.layers))
                            continue
                        rested.append(seconds - told[-1][1] - rounds[0].verify_seconds)
                        if not shape.rests:
                            self._noted.add("rest", (len(rested),), sum(rested))
                            rested = []
            self._passes[context] += [(nodes // batch, at, batch, seconds) for nodes, at, seconds in passes.all]
            for sequence in sequences:
                engine.cancel(sequence)
            engine.step()

    def _run_ahead(self, engine: Engine, drafter: Full, context: int) -> None:
        """Note rounds of a text whose trees are chains, where their passes can be run ahead."""
        if not engine.parts.chains_on:
            return
        (text,) = self._submitted(engine, context, 1, tokens=self.wanted.tokens_ahead)
        self._step(engine, [text], Shape(1, 1, min(self.wanted.widths)))
        for repetition in range(1 + self.wanted.repetitions):
            for shapes in self.wanted.chains():
                taken = []
                for shape in shapes:
                    drafter.was_ahead = False
                    seconds, (round_,) = self._step(engine, [text], shape)
                    if drafter.was_ahead:  # the first of those that are run together takes what all of them take
                        taken.append(seconds - round_.verify_seconds)
                if taken and repetition:  # what has to be made once is made in the first
                    self._noted.add("chain", (shapes[0].nodes - 1,), sum(taken) / len(taken))
        engine.cancel(text)
        engine.step()

    def _read(self, engine: Engine, drafter: Full, context: int) -> None:
        """Prompts that do not repeat themselves, so that a drafter that looks texts up has its model draft."""
        for _ in range(min(READS, self.wanted.repetitions)):
            (reading,) = self._submitted(engine, context, 1, context)
            drafter.reading = None
            self._step(engine, [reading], Shape())
            self._noted.add("read", (context,), reading.prefill_seconds)
            if drafter.reading is not None:
                self._noted.add("catch_up", (drafter.reading.tokens,), drafter.reading.seconds)
            engine.cancel(reading)
            engine.step()

    def _submitted(
        self, engine: Engine, context: int, batch: int, period: int = PERIOD, tokens: int | None = None
    ) -> list[Sequence]:
        most = self.wanted.tokens if tokens is None else tokens
        sampling = temperature_sampling(self.wanted.temperature)
        sequences = []
        for _ in range(batch):
            piece = self._rng.integers(0, self._decoder.target.vocab_size, min(period, context))
            sequences.append(engine.submit(Request(np.resize(piece, context), most, sampling, seed=0)))
        return sequences

    def _step(self, engine: Engine, sequences: list[Sequence], shape: Shape) -> tuple[float, list[Round]]:
        for field, value in attrs.asdict(shape).items():
            setattr(self._shape, field, value)
        started = perf_counter()
        rounds = engine.step()
        seconds = perf_counter() - started
        for sequence in sequences:
            if sequence.error is not None:
                raise sequence.error
        return seconds, [*rounds.values()]

    def _told(self, told: list[tuple[int, float]], drafter: Full) -> None:
        """Note what the drafter took to be told of some rounds, and what its first layer took then.

        Nothing of the first round of a text, and where so much was told that it was read before the layer.
        """
        if told and drafter.reading is None:
            tokens, seconds = map(sum, zip(*told, strict=True))
            _, width, took = drafter.layers[0]
            self._tells.append((tokens, width, seconds + took))

    def _commit(self, one: Round, seconds: float, layers: int) -> None:
        """Note what is left of a step in which so many layers were drafted."""
        spans = sum(span.seconds for span in one.spans)
        self._left.append((layers, len(one.tokens), one.commit_seconds + seconds - spans))

    def _beside_layer(self) -> float:
        """What the engine takes for a layer besides the drafter: by how much more is left where more are drafted."""
        by_layers: dict[int, list[float]] = defaultdict(list)
        for layers, _, seconds in self._left:
            by_layers[layers].append(seconds)
        if len(by_layers) < 2:
            return 0.0
        few, many = min(by_layers), max(by_layers)
        return max(0.0, (median(by_layers[many]) - median(by_layers[few])) / (many - few))


def _told_in(one: Round) -> tuple[int, float]:
    """The tokens of a round, and what the drafter took to be told of them."""
    told = sum(span.seconds for span in one.spans if span.part == "draft" and span.work == "commit")
    return len(one.tokens), told
