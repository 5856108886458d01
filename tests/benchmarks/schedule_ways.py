"""Ways of decoding the same prompts, with schedules and without, and the measuring of them in turns."""

import statistics
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from rich.console import Console
from rich.progress import track

from talon_core.bench.bootstrap import median_with_interval
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.decoding.source import Source
from talon_core.engine.ahead.place import Place, parse_place
from talon_core.engine.bounds import Bounds
from talon_core.plugins.parts import Parts, resolve
from talon_core.plugins.registry import load_registry
from talon_core.rounds import Round
from talon_core.schedule import Schedule

SYNC = "sync"
TOLD = ("hits", "misses", "rounds", "waited")


@attrs.define(eq=False)
class Way:
    """How the prompts are decoded.

    Attributes:
        decoder: decodes them.
        schedule: what it prepares; None for nothing.
        draft_on: where, as it is written.
        threads: that there are.
        less: of the target, where no process takes its own from them: the decoder does that itself.
        warm: rounds of the text that warmed up.
    """

    decoder: Decoder
    schedule: Schedule | None
    draft_on: str
    threads: int
    less: int
    warm: Sequence[Round] = ()

    @property
    def place(self) -> Place | None:
        """Where it drafts; None in a thread."""
        return parse_place(self.draft_on)

    @property
    def cores(self) -> int:
        """Of a process beside; 0 for one on a GPU, and for a thread."""
        return self.place.number if self.place is not None and self.place.device == "cpu" else 0

    def begin(self) -> None:
        """It is this one's turn."""
        torch.set_num_threads(self.threads if self.place is not None else self.less)

    @property
    def of_target(self) -> int:
        """Threads of the target's passes."""
        return (
            self.less if self.place is None or self.place.device != "cpu" else max(1, self.threads - self.place.number)
        )

    @property
    def of_drafter(self) -> int:
        """Threads of the drafter's."""
        return self.cores or self.less


def ways_of(
    model: Any, tokenizer: Any, source: str, drafter: str, policy: str, schedules: Sequence[str], places: Sequence[str]
) -> dict[str, Way]:
    """Drafting and verifying in turn with all threads, and each schedule in each place, by name.

    Beside a thread that drafts the target has one thread less.

    Args:
        model: a transformers causal LM.
        tokenizer: its tokenizer.
        source: what it was loaded by.
        drafter: a spec.
        policy: likewise.
        schedules: likewise, besides `sync`.
        places: as `--draft-on` takes them.
    """
    threads, found = torch.get_num_threads(), {}
    others = [(f"{spec} on {place}", spec, place) for spec in schedules for place in places]
    for name, spec, place in [(SYNC, SYNC, "thread"), *others]:
        resolved = resolve(Parts(drafter, policy, schedule=spec, draft_on=place), load_registry())
        # prompts come several times, and each time they are read
        decoder = decoder_for_model(model, tokenizer, resolved, None, Source(source), Bounds(keep=False))
        less = threads if spec == SYNC or not on_cpu(decoder) else max(threads - 1, 1)
        found[name] = Way(decoder, resolved.schedule, place, threads, less)
    return found


def on_cpu(decoder: Decoder) -> bool:
    """Whether the target computes on the processor, whose cores the drafter needs, too."""
    return bool(decoder.target.device.type == "cpu")


def measured(label: str, ways: dict[str, Way], texts: Sequence[str], tokens: int, repetitions: int) -> dict[str, Any]:
    """Every way on every prompt, in turn.

    Args:
        label: of the progress.
        ways: one of them `SYNC`.
        texts: the prompts.
        tokens: most new tokens of each.
        repetitions: of all of it.

    Returns:
        For each way tokens a second, with the reading of prompts and after it, also to those of `SYNC`; the shares of
        the time after the prompt in which no pass of the target runs, and in which the drafter does nothing; hits,
        misses and rounds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    decoded: dict[str, list[float]] = {name: [] for name in ways}
    told: dict[str, dict[str, float]] = {
        name: dict.fromkeys((*TOLD, "tokens", "decoded", "verified", "drafted"), 0) for name in ways
    }
    wrong: list[str] = []
    for way in ways.values():  # passes are recorded, costs become known
        way.begin()
        way.decoder.generate(texts[0], max_new_tokens=min(tokens, 16))
        way.warm = way.decoder.generate(texts[0], max_new_tokens=min(2 * tokens, 32)).rounds
    for text in track([*texts] * repetitions, label, console=Console(stderr=True), transient=True):
        first: list[int] | None = None
        for name, way in ways.items():
            way.begin()
            result = way.decoder.generate(text, max_new_tokens=tokens)
            first = result.token_ids if first is None else first
            if result.token_ids != first:
                wrong.append(f"{name}: {text[:40]!r}")
            stats = result.stats
            seconds[name].append(stats.seconds / max(stats.new_tokens, 1))
            told[name]["hits"] += stats.hits
            told[name]["misses"] += stats.misses
            told[name]["rounds"] += stats.rounds
            told[name]["waited"] += stats.wait_seconds
            told[name]["tokens"] += stats.new_tokens
            told[name]["decoded"] += stats.seconds - stats.prefill_seconds
            told[name]["verified"] += stats.verify_seconds
            told[name]["drafted"] += stats.draft_seconds - stats.wait_seconds + stats.prepare_seconds
            decoded[name].append((stats.seconds - stats.prefill_seconds) / max(stats.new_tokens, 1))
    figures = {
        name: {
            "tokens_per_second": 1 / statistics.mean(own),
            "over_sync": _over(seconds[SYNC], own),
            "decoding": told[name]["tokens"] / told[name]["decoded"],
            "decoding_over_sync": _over(decoded[SYNC], decoded[name]),
            "target_waits": 1 - told[name]["verified"] / told[name]["decoded"],
            "drafter_waits": 1 - told[name]["drafted"] / told[name]["decoded"],
            **{key: told[name][key] for key in TOLD},
        }
        for name, own in seconds.items()
    }
    return {"ways": figures, "texts_differ": wrong}


def _over(sync: Sequence[float], own: Sequence[float]) -> dict[str, Any]:
    """The median of ratios, prompt by prompt, with its interval."""
    return attrs.asdict(median_with_interval([a / b for a, b in zip(sync, own, strict=True)]))
