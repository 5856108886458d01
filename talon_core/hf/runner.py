"""Runs a transformers causal LM over prompts and draft trees with a cache of our own; target and drafters share it."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from threading import RLock
from typing import Any
from weakref import WeakSet

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from talon_core.attention import Accelerator
from talon_core.drafter import FINAL_STATE
from talon_core.errors import PluginError, blaming, blaming_bugs
from talon_core.hf.checks import AsLoaded, check_autocast, check_layers, check_windows
from talon_core.hf.model import AttentionSwitch, configs_of, evaluating
from talon_core.rule import Accepted
from talon_core.runtime.blocks import forget_widened
from talon_core.runtime.cache_keyword import cache_keyword
from talon_core.runtime.chain_rounds import ChainRounds
from talon_core.runtime.executor import Executor, HostExecutor, TreeView
from talon_core.runtime.inputs import PassInputs, Staged
from talon_core.runtime.modules import Modules, hooks_of, marks_of, modules_of, recorded_parts
from talon_core.runtime.passes import Pass
from talon_core.runtime.states import captured_states, decoder_layers
from talon_core.sessions import RepeatableSession, WatchfulSession
from talon_core.target import ALL_WALKED, NOTHING_DRAWN, Further, NodeDraws
from talon_core.tree import IntArray, TokenTree, read_only

ROOT: IntArray = read_only(np.zeros(1, dtype=np.int64))
"""The path that goes no further than to the root."""


@attrs.frozen(eq=False)
class Ran:
    """What a pass over trees gives at its nodes, those of all slots one after another.

    Attributes:
        logits: shape `(queries, vocab)`.
        features: shape `(queries, features)`; None if none are kept.
        starts: where the nodes of each slot start, and at last their number, shape `(slots + 1,)`, int64.
    """

    logits: Tensor
    features: Tensor | None
    starts: IntArray


class AcceleratorError(PluginError):
    """An accelerator failed at a model, which runs without it."""


class PutOff:
    """What a session has not set up yet: all that is needed where modules of its model are run.

    A round whose passes are all recorded needs none of it, and to look at hundreds of modules takes long. Outside of a
    session it holds on to nothing, so that executors keep no model.
    """

    def __init__(self) -> None:
        self._what: Callable[[], None] | None = None
        self._setting_up = RLock()

    @contextmanager
    def until_left(self, what: Callable[[], None]) -> Iterator[None]:
        """While entered, `set_up` calls this; what it enters is left behind this."""
        self._what = what
        try:
            yield
        finally:
            with self._setting_up:
                self._what = None

    def set_up(self) -> None:
        """Set up what is put off, once, whichever thread asks; after an error, when it is asked again."""
        with self._setting_up:
            what, self._what = self._what, None
            try:
                if what is not None:
                    what()
            except BaseException:
                self._what = what
                raise


class ModelRunner:
    """A causal LM, its tree cache, its attention backend, and, where there is one, its accelerator.

    Args:
        model: any `transformers` causal LM that routes its attention through `AttentionInterface`.
        executor: runs its passes.
        accelerator: makes the model's own layers faster; None leaves them alone.
        forget: gives up what was recorded of the model, where it has changed; by default what the executor has.
        features: which hidden states to keep: 0 is what enters the first layer, `i` what layer `i - 1` returns,
            `FINAL_STATE` what enters the LM head.
        verifies: whether the model is a target, whose layers are checked again where they have changed.

    Raises:
        ValueError: if the model cannot be run over trees; the sentence says why.
        AcceleratorError: if the accelerator fails at the model.
    """

    def __init__(
        self,
        model: Any,
        executor: Executor,
        accelerator: Accelerator | None = None,
        features: Sequence[int] = (),
        forget: Callable[[], None] | None = None,
        verifies: bool = False,
    ) -> None:
        self.model = model
        self.features = tuple(features)
        self.device: torch.device = model.device
        self.executor = executor
        self.others: Collection[Executor] = ()  # that may run layers of the model
        self._forget = forget if forget is not None else executor.forget
        self.cache = executor.cache
        self._cache_keyword = cache_keyword(model)
        self._captured: dict[int, Tensor] = {}
        self.windows: list[int | None] = []  # the sliding window of each layer in the last pass
        self._switch = AttentionSwitch(model)
        self._modules = Modules(model)
        self._hooks = hooks_of(modules_of(model))
        self.as_loaded = AsLoaded(model)
        self._parts: list[object] = []  # what recorded passes hold on to
        self._marks: list[object] = []  # of the model, as it was found the last time
        self._changes = 0  # how often it was found to be another one
        self._opened_at: dict[int, int] = {}  # by slot, after how many changes
        self.put_off = PutOff()
        self._as_is = False  # whether nothing of the model was in training or compiled, when that was seen last
        executor.set_up.append(self.put_off.set_up)
        self._verifies = self._layers_unchecked = verifies
        self._passes_unchecked = False
        self._chained: WeakSet[ChainRounds] = WeakSet()
        self._accelerated = None
        if accelerator is not None:
            try:
                with blaming_bugs("accelerator", accelerator, "prepare"):
                    self._accelerated = accelerator.prepare(model)
            except PluginError as error:
                raise AcceleratorError(str(error)) from error
        self._layers = decoder_layers(model) if self.features else nn.ModuleList()
        for layer in self.features:
            if layer != FINAL_STATE and not 0 <= layer <= len(self._layers):
                raise ValueError(f"there is no hidden state {layer}; the model has 0 to {len(self._layers)}")

    def session(self) -> RepeatableSession:
        """While entered, the model's attention is TALON's; outside, the model is as it was.

        Entering raises `BusyError` if the model is in a session already, of this runner or of another, and `ValueError`
        if autocast is on, or the model has another dtype, device or vocabulary than it had.
        """
        return _Session(self)

    @contextmanager
    def _entered(self, again: bool) -> Iterator[None]:
        check_autocast(self.device)
        changed = self.as_loaded.difference()
        if changed is not None:
            raise ValueError(changed)
        modules: list[nn.Module] = []
        if not again or not self._modules.are_those_of_the_model():
            modules = modules_of(self.model)
            self._modules = Modules(self.model)
            self._hooks = hooks_of(modules)
            if again:
                self._check_anew()
                self._forget()
        why = "the model has hooks, which are called in each pass" if any(self._hooks) else None
        for executor in {self.executor, *self.others}:
            executor.let_be_seen(why)
        watchful = self._accelerated if isinstance(self._accelerated, WatchfulSession) else None
        seen = watchful.changes if watchful is not None else 0
        if not again:
            self._look(modules, watchful.watches if watchful is not None else lambda _: False)
        # streams and captures are those of the current device
        device = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with (
            device,
            self._switch.switched(),
            ExitStack() as stack,
            self.put_off.until_left(partial(self._enter_parts, stack, again)),
        ):
            if self._layers_unchecked:
                check_layers(self.model)
                self._layers_unchecked = False
            if modules or not self._as_is or not all(one.asks for one in (self.executor, *self.others)):
                self.put_off.set_up()
            if watchful is not None and watchful.changes != seen:
                self._changes += 1
                self._forget()
            yield

    def _enter_parts(self, stack: ExitStack, again: bool) -> None:
        with ExitStack() as parts:  # where one fails, none stays entered
            self._as_is = parts.enter_context(evaluating(self._modules))
            self._captured = parts.enter_context(captured_states(self.model, self.features, self._layers))
            parts.callback(self._captured.clear)
            faster = self._accelerated
            if faster is not None:
                parts.enter_context(faster.again() if again and isinstance(faster, RepeatableSession) else faster)
            stack.enter_context(parts.pop_all())

    def _look(self, modules: Sequence[nn.Module], watched: Callable[[Tensor], bool]) -> None:
        """Notice whether the model is another one than before; then texts are not taken over, nor passes repeated.

        Args:
            modules: all of the model.
            watched: tells weights whose numbers the accelerator compares.
        """
        settings = [vars(config) for config in configs_of(modules)]
        parts, marks = recorded_parts(modules), marks_of(modules, watched, settings)
        if (parts, marks) != (self._parts, self._marks):
            if self._marks:
                forget_widened(self.model)  # they may be numbers of other blocks
                self._check_anew()
            self._parts, self._marks = parts, marks
            self._changes += 1
            self._forget()

    def _check_anew(self) -> None:
        """Give up what was found of the model's layers: they may have other configurations, and other windows."""
        self._switch = AttentionSwitch(self.model)
        self._layers_unchecked = self._passes_unchecked = self._verifies

    def _kept(self) -> Tensor | None:
        if not self.features:
            return None
        # layers may be on different devices
        return torch.cat([self._captured[layer].to(self.device) for layer in self.features], dim=-1)  # (.., features)

    def open(self, slot: int, room: int) -> None:
        """Let a sequence have a slot with so many rows of the cache."""
        self.cache.open(slot, room)
        self._opened_at[slot] = self._changes

    def resume(self, slot: int, room: int, source: int, length: int) -> int:
        """As `KeyValueCache.resume`, taking over what is cached; nothing where the model has changed since."""
        if self._opened_at.get(source) != self._changes:
            self.open(slot, room)
            return 0
        self._opened_at[slot] = self._changes
        return self.cache.resume(slot, room, source, length)

    def close(self, slot: int) -> None:
        """Forget a sequence."""
        self.cache.close(slot)

    @torch.inference_mode()
    def read(self, parts: Mapping[int, IntArray]) -> dict[int, Tensor | None]:
        """Run the next tokens of prompts; as `Target.read`."""
        kept: dict[int, list[Tensor]] = {slot: [] for slot in parts}
        chunk = self.executor.prompt_tokens
        for offset, group in self.executor.prompt_passes({slot: len(ids) for slot, ids in parts.items()}):
            counts = [min(len(parts[slot]) - offset, chunk) for slot in group]
            ids = np.zeros((len(group), max(counts)), dtype=np.int64)
            for at, (slot, count) in enumerate(zip(group, counts, strict=True)):
                ids[at, :count] = parts[slot][offset : offset + count]
            with self.executor.reading(group, counts) as (positions, this_pass):
                self._forward(torch.from_numpy(ids), positions, this_pass, logits_to_keep=1)
            states = self._kept()
            for at, (slot, count) in enumerate(zip(group, counts, strict=True)):
                if states is not None:
                    kept[slot].append(states[at, :count])
        if not self.features:
            return dict.fromkeys(parts)
        width = len(self.features) * self.model.config.get_text_config().hidden_size
        none = torch.empty((0, width), dtype=self.model.dtype, device=self.device)
        return {slot: torch.cat(of_one) if of_one else none for slot, of_one in kept.items()}

    def prepare(
        self, slots: Collection[int], nodes: int, ends: frozenset[int] | None, drawn: Mapping[int, NodeDraws]
    ) -> None:
        """As `Executor.prepare`, for `walk`, or without `ends` for `run`."""
        self.executor.prepare(slots, nodes, self._outputs, "outputs", ends, drawn)

    def run(self, staged: Staged) -> Ran:
        """Run the nodes of trees that are not staged in the cache yet.

        What is returned is lost when something else is run.
        """
        inputs = self.executor.inputs(staged)
        return _ran(inputs, self.executor.run(inputs, self._outputs, "outputs"))

    def walk(
        self,
        trees: Mapping[int, TokenTree],
        slots: Collection[int],
        ends: frozenset[int],
        unwalked: Mapping[int, int] = ALL_WALKED,
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
        logits: bool = True,
    ) -> tuple[Ran, dict[int, Accepted]]:
        """Run whole trees; where asked, walk along the most likely tokens and commit the paths, all on the device.

        Args:
            trees: by slot.
            slots: where to walk.
            ends: tokens that end their texts.
            unwalked: as in `Target.verify`.
            drawn: as for `Executor.walk`.
            logits: likewise.

        Returns:
            What `run` returns, without `logits` with anything in their place, and what was accepted of each slot that
            was walked.
        """
        inputs = self.executor.inputs({slot: (tree, 0) for slot, tree in trees.items()})
        made, walks = self.executor.walk(inputs, self._outputs, "outputs", slots, ends, unwalked, drawn, logits)
        ran = _ran(inputs, made)
        features = self.executor.walked_rows(ran.features, inputs, walks) if ran.features is not None else {}
        return ran, {
            slot: Accepted(walk.path, walk.token, features.get(slot), numbers=walk.numbers)
            for slot, walk in walks.items()
        }

    def walk_roots(
        self,
        trees: Mapping[int, TokenTree],
        ends: frozenset[int],
        further: Further | None,
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
    ) -> tuple[dict[int, Accepted], int] | None:
        """As `Executor.walk_roots`: what was accepted of each slot, and how many passes were run for it."""
        found = self.executor.walk_roots(trees, "outputs", ends, further, drawn)
        if found is None:
            return None
        (features,) = found.rest  # of the roots, one after another
        count = len(found.tokens)
        own: Sequence[Tensor | None] = [features] * count if features is None or count == 1 else features.split(1)
        both = zip(found.tokens.items(), own, strict=True)
        return {slot: Accepted(ROOT, token, kept) for (slot, token), kept in both}, found.passes

    def chained(self, executor: Executor) -> ChainRounds | None:
        """As `NetworkTarget.chained`."""
        own = self.executor
        if not (isinstance(own, HostExecutor) and isinstance(executor, HostExecutor) and self.features):
            return None
        if own.recorder is None or executor.recorder is None:
            return None
        found = ChainRounds(own, "outputs", executor, _features)
        self._chained.add(found)
        return found

    def walk_ready(
        self,
        trees: Mapping[int, TokenTree],
        ends: frozenset[int],
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
    ) -> tuple[dict[int, Accepted], float] | None:
        """What was accepted of trees whose pass was run ahead, by `chained`, and seconds of that pass; otherwise None.

        Args:
            trees: by slot.
            ends: tokens that end their texts.
            drawn: as for `Executor.walk`.
        """
        for one in self._chained:
            found = one.walk(trees, ends, drawn)
            if found is not None:
                return {
                    slot: Accepted(found.path, found.token, found.features, numbers=found.numbers) for slot in trees
                }, found.seconds
        return None

    def commit(self, paths: Mapping[int, IntArray]) -> None:
        """Keep these of the staged nodes of each slot, ascending, and forget the others."""
        self.executor.commit(paths)

    def _outputs(self, view: TreeView) -> tuple[Tensor, Tensor | None]:
        """A pass over trees: logits and features of the nodes, `(queries, ..)`."""
        logits = self._forward(view.ids[None], view.positions[None], view.attention)
        features = self._kept()
        return logits[0], features[0] if features is not None else None

    def _forward(self, ids: Tensor, positions: Tensor, this_pass: Pass, logits_to_keep: int = 0) -> Tensor:
        """Logits, shape `(rows, kept, vocab)`."""
        # of an ordinary error nobody knows whether it is the model's
        with (
            blaming("attention backend", self.executor.attention, "attend", but=_may_be_the_models),
            this_pass.running(self.cache) as keyword,
        ):
            logits: Tensor = self.model(
                input_ids=ids.to(self.device),
                position_ids=positions.to(self.device),
                use_cache=True,
                logits_to_keep=logits_to_keep,
                **{self._cache_keyword: self.cache, **keyword},
            ).logits
        if self._passes_unchecked:
            check_windows(self.model, this_pass.windows)
            self._passes_unchecked = False
        self.windows = this_pass.windows
        return logits.to(self.device)


def _ran(inputs: PassInputs, made: tuple[Tensor, Tensor | None]) -> Ran:
    logits, features = made
    count = len(inputs.ids)
    if logits.shape[0] == count:  # nothing is padded, and slices take longer than one would think
        return Ran(logits, features, inputs.layout.starts)
    return Ran(logits[:count], features[:count] if features is not None else None, inputs.layout.starts)


def _features(made: tuple[Tensor, Tensor | None]) -> Tensor | None:
    """The features out of what a pass returns."""
    return made[1]


def _may_be_the_models(error: BaseException) -> bool:
    return isinstance(error, Exception) and not isinstance(error, StopIteration)


class _Session(RepeatableSession):
    """A runner's session; see `ModelRunner.session`."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._inside: AbstractContextManager[None] = nullcontext()

    def __enter__(self) -> None:
        self._inside = self._runner._entered(again=False)
        self._inside.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._inside.__exit__(*error)

    def again(self) -> AbstractContextManager[None]:
        return self._runner._entered(again=True)
