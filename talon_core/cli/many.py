"""`talon generate` with several prompts: batches, how far they are, and the answers in the order of the prompts."""

import sys
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import attrs

from talon_core.basics.numerals import counted
from talon_core.bench.prompts import PromptSet, read_set
from talon_core.cli.output import note, stderr
from talon_core.cli.progress import progress

if TYPE_CHECKING:
    from talon_core.decoding.decoder import Decoder
    from talon_core.request import Result

ENDING = ".jsonl"
"""How names of files with several prompts end, in any case."""


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


def is_of_several(file: str) -> bool:
    """Whether a file holds several prompts, by its name."""
    return file.lower().endswith(ENDING)


def read_prompts(file: str) -> PromptSet:
    """The prompts of a file.

    Raises:
        ValueError: if there are none, or a line is none.
        OSError: if the file cannot be read.
    """
    return read_set(Path(file))


def decode_all(decoder: "Decoder", prompts: PromptSet, batch_size: int, options: Mapping[str, Any]) -> Answers:
    """Decode the first turn of each prompt, in batches; Ctrl-C and errors end it and keep what there is.

    Raises:
        ValueError: for a bad prompt or option; the sentence names the prompt's line. Nothing is decoded then.
    """
    several = prompts.prompts
    called = [
        f"prompt {at + 1} of {len(several)} (line {one.line} of '{prompts.file}')" for at, one in enumerate(several)
    ]
    requests = decoder.requests([one.turns[0] for one in several], options, called)
    batch = decoder.batch(requests, batch_size, called=called)
    _tell_left_out(prompts)
    started, interrupted, failed = perf_counter(), False, None
    with progress("decoding", "prompts") as report:
        report(0, len(requests))
        try:
            with batch.in_one_session():
                for _ in batch:
                    report(sum(one.finished for one in batch.sequences), len(requests))
        except KeyboardInterrupt:
            batch.close()
            interrupted = True
        except Exception as error:  # the caller raises it, once it has shown the answers
            failed = error
    results = [result for one, result in zip(batch.sequences, batch.results(), strict=True) if one.has_begun]
    return Answers(results, perf_counter() - started, batch.target_passes, interrupted, failed)


def _tell_left_out(prompts: PromptSet) -> None:
    """Say on stderr that of conversations nothing but the first turn is decoded."""
    later = [len(one.turns) - 1 for one in prompts.prompts if len(one.turns) > 1]
    if later:
        turns = f"{counted(sum(later), 'later turn')} {'is' if sum(later) == 1 else 'are'} left out"
        note(f"of {counted(len(later), 'prompt')}, {turns}; only the first turn of a prompt is decoded")


def show_all(prompts: PromptSet, answers: Answers) -> None:
    """The texts on stdout, each behind its prompt's first line on stderr; the totals on stderr."""
    from talon_core.request import INTERRUPTED  # here, as it imports torch

    for at, result in enumerate(answers.results):
        first_line = prompts.prompts[at].turns[0].strip().splitlines()[0]
        stderr().print(f"\n[{at + 1}/{len(prompts.prompts)}] {first_line}", style="bold", soft_wrap=True)
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
