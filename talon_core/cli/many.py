"""`talon generate` with several prompts: batches, a bar while they run, and the answers in the order of the prompts."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import attrs
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from talon_core.bench.prompts import read_set
from talon_core.cli.output import stderr

if TYPE_CHECKING:
    from talon_core.decoding.decoder import Decoder
    from talon_core.request import Result

ENDING = ".jsonl"
"""Files of this kind hold several prompts."""


@attrs.frozen(eq=False)
class Answers:
    """What came out of several prompts.

    Attributes:
        results: one for each prompt, in their order; prompts that were never begun have none.
        seconds: from the first prefill to the last token.
        target_passes: forward passes over trees, each of a whole batch.
        interrupted: the user has stopped it.
        error: what has ended it early, if something has.
    """

    results: "list[Result]"
    seconds: float
    target_passes: int
    interrupted: bool = False
    error: Exception | None = None

    def stats(self) -> dict[str, Any]:
        """Totals; `mean_accepted_tokens` is per sequence and pass, and `tokens_per_second` of all together."""
        new_tokens = sum(result.stats.new_tokens for result in self.results)
        rounds = sum(result.stats.rounds for result in self.results)
        return {
            "sequences": len(self.results),
            "new_tokens": new_tokens,
            "rounds": rounds,
            "target_passes": self.target_passes,
            "mean_accepted_tokens": new_tokens / rounds if rounds else 0.0,
            "nodes_verified": sum(result.stats.nodes_verified for result in self.results),
            "seconds": self.seconds,
            "tokens_per_second": new_tokens / self.seconds if self.seconds else 0.0,
        }


def read_prompts(file: str) -> list[str]:
    """The prompts of a file, the first turn of each.

    Raises:
        ValueError: if there are none, or a line is none.
        OSError: if the file cannot be read.
    """
    return [prompt.turns[0] for prompt in read_set(Path(file)).prompts]


def decode_all(decoder: "Decoder", prompts: Sequence[str], batch_size: int, options: Mapping[str, Any]) -> Answers:
    """Decode prompts in batches; Ctrl-C and errors end it and keep what there is."""
    requests = decoder.requests(prompts, options)
    started, interrupted, failed = perf_counter(), False, None
    batch = decoder.batch(requests, batch_size)
    with _bar() as bar:
        task = bar.add_task("decoding", total=len(requests))
        try:
            with batch.in_one_session():
                for _ in batch:
                    bar.update(task, completed=sum(one.finished for one in batch.sequences))
        except KeyboardInterrupt:
            batch.close()
            interrupted = True
        except Exception as error:  # the caller raises it, once it has shown the answers
            failed = error
    results = [result for one, result in zip(batch.sequences, batch.results(), strict=True) if one.has_begun]
    return Answers(results, perf_counter() - started, batch.target_passes, interrupted, failed)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=stderr(), transient=True)


def show_all(prompts: Sequence[str], answers: Answers) -> None:
    """The texts on stdout, each behind its prompt's first line on stderr; the totals on stderr."""
    from talon_core.request import INTERRUPTED  # here, as it imports torch

    for at, result in enumerate(answers.results):
        first_line = prompts[at].strip().splitlines()[0]
        stderr().print(f"\n[{at + 1}/{len(prompts)}] {first_line}", style="bold", soft_wrap=True)
        sys.stdout.write((result.text or "") + "\n")
        sys.stdout.flush()
        if result.finish_reason == INTERRUPTED:
            stderr().print("(not at its end)", style="bold", soft_wrap=True)
    total = answers.stats()
    stderr().print(
        f"\n{total['new_tokens']} tokens of {total['sequences']} sequences in {total['seconds']:.2f} s: "
        f"{total['tokens_per_second']:.1f} tokens/s, {total['mean_accepted_tokens']:.2f} tokens per sequence and pass",
        style="dim",
        soft_wrap=True,
    )
