"""What the fixture `talon_benchmark` times: a tree policy's own work, whole generations, and replays of a trace."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.choices import Choices, SeededChoices
from talon_core.defaults import DEFAULT_DRAFTER, PART_OF_TARGET
from talon_core.drafter import Frontier
from talon_core.engine.checked_policy import begun
from talon_core.engine.growing import DraftLimits, Growing
from talon_core.errors import made_of, naming, written
from talon_core.plugins.parts import Parts, Resolved, built, resolve
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import spelled
from talon_core.policy import Growth, SequenceInfo, TreePolicy
from talon_core.table import TableDrafter
from talon_core.trace.folder import read_trace
from talon_core.trace.methods import own_drafter
from talon_core.trace.replay import Method, Replay, Totals
from talon_core.trace.trying import Trying
from talon_core.tree import TokenTree

if TYPE_CHECKING:
    from talon_core.request import Result

SHIPPED = Path(__file__).parent / "trace"
"""The trace that ships: SmolLM2-135M with its EAGLE-3 head on four prompts of ours; `README.md` in it says how."""

LAYERS = ("last", "widest")
VOCAB = 2000
DEEPEST = 100
"""Nodes deeper than that are not drafted in `grow`."""
NEW_TOKENS = 64
TINY_VOCAB = 97
TOLD = SequenceInfo(prompt_length=1, max_new_tokens=DEEPEST + 1, temperature=1.0)


@attrs.frozen(eq=False)
class Asked:
    """One layer that a policy was asked about, and the tree and the candidates that it was shown."""

    tree: TokenTree
    candidates: Candidates


@attrs.frozen
class Measured:
    """What came of one test, besides time.

    Attributes:
        group: what was measured, `benchmark.group`.
        name: of the test.
        info: `benchmark.extra_info`.
    """

    group: str
    name: str
    info: Mapping[str, Any]


class TalonBenchmark:
    """Times tree policies with pytest-benchmark; each test calls one of its methods, once.

    A policy is a spec such as `"talon:budget=12"`, an object, or a class whose options all have defaults. What is
    measured besides time is in `benchmark.extra_info`, and so in what `--benchmark-autosave` stores.

    Args:
        benchmark: the fixture of pytest-benchmark.
        measured: where to note what is measured besides time.
    """

    def __init__(self, benchmark: Any, measured: "list[Measured] | None" = None) -> None:
        self.benchmark = benchmark
        self._measured = [] if measured is None else measured

    def grow(self, policy: TreePolicy | type[TreePolicy] | str, layer: str = "last") -> Growth:
        """Time `grow` for one layer of one tree, 200 times.

        The drafter is a table of laws as a language model's, about as many peaked as flat, over 2,000 tokens. Before
        each time the policy begins anew and is asked for the layers above.

        Args:
            policy: the policy.
            layer: "last", in which the tree is nearest to its budget, or "widest", which has the most candidates.

        Returns:
            What the policy answered.

        Raises:
            LookupError: for an unknown name.
            ValueError: if it is no policy, there is no such layer, or it drafts nothing in the first round of a text.
            PluginError: if it breaks its contract; the message names it.
        """
        if layer not in LAYERS:
            raise ValueError(f"layer is {written(layer)}; it must be one of {', '.join(LAYERS)}")
        made = made_policy(policy)
        asked = layers_of(made)
        if not asked:
            raise ValueError(
                f"{naming('tree policy', made)} drafts nothing in its first round: there is no layer to time"
            )
        number = len(asked) - 1
        if layer == "widest":
            number = max(range(len(asked)), key=lambda one: asked[one].candidates.tokens.size)
        timed = asked[number]

        def prepared() -> tuple[tuple[Any, ...], dict[str, Any]]:
            own, choices = begun(made, TOLD), SeededChoices(0)
            for above in asked[:number]:
                own.width(above.tree)
                own.grow(above.tree, above.candidates.copied(), choices)
            own.width(timed.tree)
            return (own, timed.tree, timed.candidates.copied(), choices), {}

        self._group(f"grow, {layer} layer")
        growth: Growth = self.benchmark.pedantic(_grow, setup=prepared, rounds=200, warmup_rounds=5)
        self._tell(policy, made, layers=len(asked), nodes=len(timed.tree), candidates=timed.candidates.tokens.size)
        return growth

    def rounds(self, policy: TreePolicy | type[TreePolicy] | str) -> "Result":
        """Time whole generations of 64 tokens by a random model of four tiny layers, drafted for by three of them.

        Args:
            policy: the policy.

        Returns:
            The last generation.

        Raises:
            AssertionError: if the text is not the one of plain greedy decoding.
            LookupError: for an unknown name.
            ValueError: if it is no policy, or its default rule is lossy.
            PluginError: if it breaks its contract; the message names it.
        """
        from talon_core.decoding.loading import decoder_for_model

        resolved = _resolved(policy, PART_OF_TARGET)
        decoder = decoder_for_model(_tiny_model(), None, resolved)
        self._group("rounds, a tiny model")
        result: Result = self.benchmark(lambda: decoder.generate(_prompt(), max_new_tokens=NEW_TOKENS))
        plain = _plain_text()
        if tuple(result.token_ids) != plain:
            raise AssertionError(
                f"{naming('tree policy', resolved.policy)} changed what comes out: {list(result.token_ids)} and not "
                f"{list(plain)}"
            )
        stats = result.stats
        counts = {name: getattr(stats, name) for name in ("target_passes", "draft_passes", "nodes_verified")}
        info = {"mean_accepted_tokens": stats.mean_accepted_tokens, **counts}
        if self.benchmark.enabled:
            info["rounds_per_second"] = stats.rounds / self.benchmark.stats.stats.median
        self._tell(policy, resolved.policy, **info)
        return result

    def replay(self, policy: TreePolicy | type[TreePolicy] | str, trace: str | Path | None = None) -> Totals:
        """Time replays of a trace: the rounds that decoding would have had, without either model.

        Args:
            policy: the policy.
            trace: a folder of `talon trace record`; by default the small trace that ships.

        Returns:
            What the policy did on all texts.

        Raises:
            LookupError: for an unknown name.
            ValueError: if it is no policy, the folder is no trace, the policy draws and the trace has no whole laws, or
                the files that the trace's drafter looks things up in were changed.
            PluginError: if the policy breaks its contract; the message names it.
        """
        resolved = _resolved(policy)
        folder = SHIPPED if trace is None else Path(trace)
        opened = read_trace(folder)
        drafter = own_drafter(opened, resolved.registry) if opened["drafter"]["reads_texts"] else None
        method = Method(_written(policy, resolved.policy), resolved.policy, resolved.rule, drafter)
        replay, texts = Replay(opened), list(opened)
        replay.check(method)
        if not texts:
            raise ValueError(f"no text of the trace in '{folder}' is recorded yet")
        self._group("replay, " + ("the shipped trace" if trace is None else folder.name))
        totals: Totals = self.benchmark(lambda: Totals.all_of(one.totals for one in Trying(replay, texts).done(method)))
        counts = {name: getattr(totals, name) for name in ("target_passes", "draft_passes", "nodes_verified")}
        info = {"mean_accepted_tokens": totals.mean_accepted_tokens, **counts, "outside": totals.outside}
        self._tell(policy, resolved.policy, **info)
        return totals

    def _group(self, name: str) -> None:
        """What is measured in the same way stands in one table, unless the test says otherwise."""
        if self.benchmark.group is None:
            self.benchmark.group = name

    def _tell(self, given: object, policy: Any, **info: Any) -> None:
        self.benchmark.extra_info.update(policy=_written(given, policy), **info)
        if self.benchmark.enabled:
            self._measured.append(Measured(self.benchmark.group, self.benchmark.name, info))


def summary(measured: Sequence[Measured]) -> list[str]:
    """What was measured besides time, as lines: a table for each group, under the tests' names."""
    lines: list[str] = []
    for group in dict.fromkeys(one.group for one in measured):
        own = [one for one in measured if one.group == group]
        columns = [*dict.fromkeys(name for one in own for name in one.info)]
        rows = [[group, *(name.replace("_", " ") for name in columns)]]
        rows += [[one.name, *(_shown(one.info.get(name, "")) for name in columns)] for one in own]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for first, *others in rows:
            cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
            lines.append("  ".join([first.ljust(widths[0]), *cells]))
        lines.append("")
    return lines[:-1]


def made_policy(given: object) -> TreePolicy:
    """The policy that a test names.

    Raises:
        LookupError: for an unknown name.
        ValueError: for a bad option, or what is no policy.
    """
    if isinstance(given, type) and issubclass(given, TreePolicy):
        try:
            given = given()
        except TypeError as error:
            raise ValueError(f"{naming('tree policy', given)} cannot be made without options: {error}") from error
    if not isinstance(given, str | TreePolicy):
        raise ValueError(  # noqa: TRY004 - as for every bad part
            f"the tree policy is {written(given)}; it must be a spec, as `talon list` shows them, a class, or "
            f"{made_of(TreePolicy, None)}"
        )
    made: TreePolicy = built(load_registry(), "tree policy", given)
    return made


def layers_of(policy: TreePolicy) -> list[Asked]:
    """What a policy is asked in a whole round with the drafter of `TalonBenchmark.grow`, layer by layer.

    Raises:
        PluginError: if it breaks its contract; the message names it.
    """
    asked: list[Asked] = []
    drafter = likely_drafter()
    growing, choices = Growing(begun(policy, TOLD), 0, DraftLimits(VOCAB, DEEPEST)), SeededChoices(0)
    while len(growing.frontier) and (width := growing.width()):
        frontier = Frontier(0, growing.tree, growing.frontier, width)
        (candidates,) = drafter.propose([frontier]).candidates
        asked.append(Asked(growing.shown, candidates))
        growing.grow(candidates, choices)
    return asked


@cache
def likely_drafter() -> TableDrafter:
    """A drafter with 199 laws as a language model's, over 2,000 tokens: about as many of them peaked as flat."""
    generator = np.random.default_rng(0)
    weights = np.exp(generator.uniform(1.0, 6.0, (199, 1)) * generator.standard_normal((199, VOCAB)))
    return TableDrafter(weights / weights.sum(axis=1, keepdims=True))


def _resolved(policy: object, drafter: str = DEFAULT_DRAFTER) -> Resolved:
    return resolve(Parts(drafter=drafter, policy=made_policy(policy)), load_registry())


def _written(given: object, policy: Any) -> str:
    """A policy as the user wrote it, or its spec."""
    return given if isinstance(given, str) else spelled(policy)


def _shown(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def _grow(policy: TreePolicy, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
    return policy.grow(tree, candidates, choices)


def _prompt() -> Any:
    return np.random.default_rng(0).integers(0, TINY_VOCAB, 64)


@cache
def _tiny_model() -> Any:
    """A random Llama of four small layers, in float32; always the same one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=TINY_VOCAB,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).float().eval()


@cache
def _plain_text() -> tuple[int, ...]:
    """What that model says by itself."""
    from talon_core.decoding.loading import decoder_for_model

    decoder = decoder_for_model(_tiny_model(), None, Parts(policy=None))
    return tuple(decoder.generate(_prompt(), max_new_tokens=NEW_TOKENS).token_ids)
