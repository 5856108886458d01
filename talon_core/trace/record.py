"""Recording: at every position of the target's own text, what a drafter offers on a superset tree."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

import attrs
import numpy as np
from torch import nn

from talon_core.basics.paths import LOCK, alone
from talon_core.bench.environment import describe_environment, describe_session
from talon_core.bench.prompts import PromptSet
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.defaults import EXACT_RULE
from talon_core.drafter import Drafter, DrafterSpec
from talon_core.engine.checked_drafter import opened, told_hash
from talon_core.engine.checked_policy import MOST_NODES
from talon_core.plugins.parts import Parts, resolve
from talon_core.plugins.registry import Registry, load_registry
from talon_core.runtime.weights import weights_hash
from talon_core.trace.answers import Answers
from talon_core.trace.columns import TextTrace
from talon_core.trace.folder import TEXTS, Trace, find_trace, write_manifest
from talon_core.trace.kept_laws import KeptLaws
from talon_core.trace.observed import Notebook, Notes, NotesLaws, Observing
from talon_core.trace.oracle import along_rows
from talon_core.trace.superset import Ahead, Superset
from talon_core.tree import IntArray

ROUNDING = "the target gave another text when it was asked again; record in float32, perhaps with one thread"


@attrs.frozen
class TracePlan:
    """What is to be recorded.

    Attributes:
        model: as the user gave it.
        sets: the prompts; of a conversation the first turn.
        max_new_tokens: most tokens of a text.
        temperature: 0 is greedy.
        seed: of the texts; each prompt's own is `seed` plus its index.
        raw: leave the chat template out.
        width: candidates of each node.
        depth: layers of the superset tree.
        nodes: most nodes of a layer that are drafted from; see `Superset`.
        least: how likely each must be, to the likeliest of its layer.
        laws: record whole laws, the drafter's and the target's, at all nodes.
    """

    model: str
    sets: tuple[PromptSet, ...]
    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    raw: bool = False
    width: int = 32
    depth: int = 12
    nodes: int = 64
    least: float = 1e-3
    laws: bool = False

    def settings(self) -> dict[str, Any]:
        """They as the manifest has them."""
        fields = attrs.asdict(self, filter=lambda field, _: field.name != "sets")
        return {**fields, "sets": [one.as_dict() for one in self.sets]}

    def check(self) -> None:
        """Refuse sizes that no tree can have.

        Raises:
            ValueError: if trees would have more nodes than a tree may.
        """
        most = Superset(self.width, self.depth, self.nodes, self.least).draft_budget
        if most > MOST_NODES:
            raise ValueError(
                f"{self.nodes} nodes in each of {self.depth} layers make trees of up to {most} nodes; a tree has at "
                f"most {MOST_NODES}; take fewer of either"
            )

    def options(self, prompt: int) -> dict[str, Any]:
        """The options of `Decoder.generate` for one prompt."""
        options: dict[str, Any] = {"max_new_tokens": self.max_new_tokens, "temperature": self.temperature}
        return options | ({"seed": self.seed + prompt} if self.temperature else {})


@attrs.frozen
class Recorded:
    """What a recording took.

    Attributes:
        trace: what is there now.
        texts: how many were recorded this time.
        positions: places in them at which a round may begin.
        size: bytes of them.
        seconds: recording took, without loading.
    """

    trace: Trace
    texts: int
    positions: int
    size: int
    seconds: float


class Recorder:
    """A loaded model and a drafter, which write a trace.

    Args:
        wanted: what is to be recorded.
        model: a transformers causal LM.
        tokenizer: its tokenizer.
        drafter: the drafter's options.
        spec: how the user wrote them.
        registry: where parts are looked up; what is installed by default.

    Raises:
        ValueError: if the drafter does not fit the model, or a prompt does not fit its context.
    """

    def __init__(
        self,
        wanted: TracePlan,
        model: Any,
        tokenizer: Any,
        drafter: DrafterSpec,
        spec: str,
        registry: Registry | None = None,
    ) -> None:
        from talon_core.hf.frontend import HFFrontend

        self.wanted = wanted
        wanted.check()
        self._model = model
        self._tokenizer = tokenizer
        self._spec, self._written = drafter, spec
        self._registry = registry if registry is not None else load_registry()
        self._frontend = HFFrontend(model, tokenizer)
        self._ahead, self._notebook = Ahead(), Notebook()
        self._decoder = None if drafter.reads_texts else self._recording(drafter)
        self._plain = self._without_drafting()
        if drafter.reads_texts:
            opened(drafter, self._plain.target)  # which refuses one that does not fit
        self._ids = {(each.name, prompt): self._encoded(each, prompt) for each, prompt in self._prompts()}

    def _prompts(self) -> Iterator[tuple[PromptSet, int]]:
        return ((each, prompt) for each in self.wanted.sets for prompt in range(len(each.prompts)))

    def _encoded(self, each: PromptSet, prompt: int) -> IntArray:
        ids = self._frontend.encode(each.prompts[prompt].turns[0], raw=self.wanted.raw)
        request = self._plain.frontend.request(ids, self.wanted.options(prompt))
        try:
            self._plain.limit(request)
        except ValueError as error:
            raise ValueError(f"prompt {prompt} of the set '{each.name}': {error}") from error
        return ids

    def _recording(self, drafter: DrafterSpec) -> Decoder:
        wanted = self.wanted
        sizes = wanted.width, wanted.depth, wanted.nodes, wanted.least
        policy = Superset(*sizes, keeps=wanted.laws, ahead=self._ahead)
        rule: Any = NotesLaws(self._notebook) if wanted.laws else EXACT_RULE
        parts = resolve(Parts(Observing(drafter, self._notebook), policy, rule), self._registry)
        return decoder_for_model(self._model, self._tokenizer, parts)

    def _without_drafting(self) -> Decoder:
        """Decodes the texts; by the target that the drafter was opened for, which took some time to make."""
        parts = resolve(Parts(policy=None), self._registry)
        if self._decoder is None:
            return decoder_for_model(self._model, self._tokenizer, parts)
        return Decoder(self._decoder.target, parts.rule, None, None, self._frontend)

    def manifest(self) -> dict[str, Any]:
        """What the trace says of itself."""
        target, drafter = self._plain.target, None
        if self._decoder is not None and self._decoder.drafter is not None:
            drafter = self._decoder.drafter
        request = self._plain.frontend.request(next(iter(self._ids.values())), self.wanted.options(0))
        environment = describe_environment(self._model, self._tokenizer, target)
        environment["tokenizer_sha256"] = target.tokenizer_sha256
        return {
            "settings": self.wanted.settings(),
            "environment": environment,
            "target": {
                "vocab_size": target.vocab_size,
                "eos": sorted(request.eos),
                "weights_sha256": environment["weights_sha256"],
            },
            "drafter": {
                "spec": self._written,
                "name": self._spec.name,
                "reads_texts": self._spec.reads_texts,
                "max_depth": None if drafter is None else drafter.max_depth,
                "sha256": drafter_hash(self._written, self._spec, drafter),
            },
            "sessions": [],
        }

    def run(self, folder: Path, report: Callable[[int, int], None] = lambda done, all_: None) -> Recorded:
        """Record whatever is not in the folder yet.

        Args:
            folder: where to.
            report: called with the number of texts that are there and of all, once at the start and after each.

        Raises:
            ValueError: if the folder has another trace or something else, somebody is recording into it, or its disk
                has no room for the laws of a text.
            PluginError: if the drafter breaks its contract; the message names it.
        """
        find_trace(folder)  # refuses a folder of something else, before anything is put there
        folder.mkdir(parents=True, exist_ok=True)
        refused = f"somebody is recording into '{folder}'; wait for it, or give another folder"
        with alone(folder / LOCK, refused):
            trace = self._open(folder)
            for left in trace.unfinished():
                left.unlink()
            planned, there = trace.planned(), set(trace.texts())
            report(len(there), len(planned))
            texts = positions = size = 0
            started = perf_counter()
            answers = Answers(self._spec, trace) if self._spec.reads_texts else None
            for name, prompt in planned:
                if (name, prompt) in there:
                    continue
                with self._keeping(trace) as laws:
                    text = self.text(name, prompt, laws)
                    size += trace.save(text, laws)
                if answers is not None:  # so that the first replay need not ask
                    answers.of(text)
                texts, positions = texts + 1, positions + text.positions
                report(len(there) + texts, len(planned))
        return Recorded(trace, texts, positions, size, perf_counter() - started)

    def _open(self, folder: Path) -> Trace:
        found, manifest = find_trace(folder), self.manifest()
        if found is not None:
            check_same(found, manifest)
            manifest = {**found.manifest}
        manifest["sessions"] = [*manifest["sessions"], describe_session()]
        trace = Trace(folder, manifest)
        write_manifest(trace)
        return trace

    def _keeping(self, trace: Trace) -> AbstractContextManager[KeptLaws | None]:
        """Where the laws of the next text go; nowhere if none are wanted, or its drafter has none."""
        if self._decoder is None or not self.wanted.laws:
            return nullcontext()
        folder = trace.folder / TEXTS
        folder.mkdir(exist_ok=True)
        return KeptLaws(folder, self._decoder.target.vocab_size, self.wanted.temperature)

    def text(self, name: str, prompt: int, laws: KeptLaws | None = None) -> TextTrace:
        """Record one prompt's text.

        Args:
            name: of the prompt's set.
            prompt: its index there.
            laws: where whole laws at all rows go; None keeps none.

        Raises:
            ValueError: if there is no room for the laws, or the target gives another text when it is asked again.
        """
        started = perf_counter()
        ids = self._ids[name, prompt]
        request = self._plain.frontend.request(ids, self.wanted.options(prompt))
        generation = self._plain.run(request)
        generation.finish()
        plain = generation.result()
        new = np.array(plain.token_ids, dtype=np.int64)
        rows = found = None
        if self._decoder is not None:
            if laws is not None:
                laws.check_room(self._fewest_rows(len(new)), f"prompt {prompt} of the set '{name}'")
            width = min(self.wanted.width, self._decoder.target.vocab_size)
            notes = self._notebook.notes = Notes(width, self.wanted.depth, laws)
            try:
                if not self._follows(self._decoder, request, new, notes):
                    raise ValueError(f"prompt {prompt} of the set '{name}': {ROUNDING}")
            finally:
                self._notebook.notes = None
            rows = notes.rows()
            found = along_rows(rows, new.tolist())
        return TextTrace(
            set=name,
            prompt=prompt,
            ids=np.concatenate([ids, new]),
            prompt_tokens=len(ids),
            finish_reason=plain.finish_reason,
            seconds=perf_counter() - started,
            rows=rows,
            along=found,
        )

    def _fewest_rows(self, positions: int) -> int:
        """How many rows a text of so many new tokens has at least."""
        assert self._decoder is not None
        drafter, wanted = self._decoder.drafter, self.wanted
        width = min(wanted.width, self._decoder.target.vocab_size)
        superset = Superset(width, wanted.depth, wanted.nodes, wanted.least)
        return superset.fewest(positions, None if drafter is None else drafter.max_depth)

    def _follows(self, decoder: Decoder, request: Any, new: IntArray, notes: Notes) -> bool:
        """Draft at every position of a text; whether it is the same text again."""
        recording, said = decoder.run(request), 0
        for position in range(len(new)):
            self._ahead.tokens = new[position:]
            notes.begin()
            round_ = next(recording, None)
            notes.end()
            if notes.laws is not None:
                notes.laws.check()
            said += 0 if round_ is None else len(round_.tokens)
            if round_ is None or said != position + 1 or round_.tokens[0] != new[position]:
                return False
        return True


def check_same(found: Trace, manifest: Mapping[str, Any]) -> None:
    """Refuse to go on with a trace of something else.

    Args:
        found: what is there.
        manifest: what is to be recorded, as far as it is known.

    Raises:
        ValueError: if they differ; the sentence names each difference.
    """
    differing = []
    for part in ("settings", "target", "drafter"):
        if part not in manifest:
            continue
        before, now = found[part], manifest[part]
        for name in {**before, **now}:
            if before.get(name) != now.get(name):
                differing.append(f"{part}: {name} was {_shown(before.get(name))} and is {_shown(now.get(name))}")
    known = [each.get("environment", {}).get("tokenizer_sha256") for each in (found.manifest, manifest)]
    if None not in known and known[0] != known[1]:  # a trace of an earlier version does not tell
        differing.append("target: tokenizer_sha256 was {} and is {}".format(*known))
    if differing:
        raise ValueError(f"the trace in '{found.folder}' is another one, give another folder: {'; '.join(differing)}")


def _shown(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        return ", ".join(
            f"{one.get('name')} ({one.get('prompts')} prompts, {str(one.get('sha256'))[:8]})" for one in value
        )
    return str(value)


def drafter_hash(written: str, spec: DrafterSpec, drafter: Drafter | None) -> str:
    """Tells two drafters apart: by how they are written, their files, and the weights of all networks that they hold.

    Args:
        written: the drafter, as the user wrote it.
        spec: its options.
        drafter: what they have opened; None where nothing was.

    Raises:
        ValueError: if its files are not there.
        PluginError: if it fails at telling its files; the message names it.
    """
    return told_hash(written, spec, (weights_hash(network) for network in _networks(drafter, set())))


def _networks(held: Any, seen: set[int], depth: int = 4) -> Iterator[nn.Module]:
    """The networks that an object holds, in its attributes and theirs."""
    if id(held) in seen or not depth:
        return
    seen.add(id(held))
    if isinstance(held, nn.Module):
        yield held
        return
    if isinstance(held, Mapping):
        parts: list[Any] = [*held.values()]
    elif isinstance(held, list | tuple):
        parts = [*held]
    elif type(held).__module__.partition(".")[0] in ("torch", "numpy", "builtins"):
        return
    else:
        parts = [*getattr(held, "__dict__", {}).values()]
        slots = [name for cls in type(held).__mro__ for name in getattr(cls, "__slots__", ())]
        parts += [getattr(held, name, None) for name in slots if name != "__weakref__"]
    for part in parts:
        yield from _networks(part, seen, depth - 1)
