"""The page beside a trained drafter: what it is for, what it was trained on, how well it does."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from talon_core.recipe import TrainingJob
from talon_drafters.training.answers import Text
from talon_drafters.training.head_training import HeadTraining

SOURCES = {
    "self-written": "questions that the target wrote itself, from a user's first words alone",
    "own answers": "long texts to summarize, each made of three of the target's own answers",
    "python-library": "code to complete, from signatures and docstrings of Python's standard library (PSF licence)",
}
"""What is known of sources that are no files."""


def model_card(training: HeadTraining, job: TrainingJob, texts: Sequence[Text], report: Mapping[str, float]) -> str:
    """A model card in Markdown.

    Args:
        training: what was trained.
        job: the settings.
        texts: what it learned from.
        report: the last figures on held-out texts, as `fit.acceptance` names them after `eval_`.
    """
    counts, tokens = Counter(text.source for text in texts), Counter[str]()
    for text in texts:
        tokens[text.source] += len(text.ids) - text.prompt
    rows = "\n".join(
        f"| {SOURCES.get(source, f'prompts of the file `{source}`')} | {count} | {tokens[source]} |"
        for source, count in counts.most_common()
    )
    return f"""# A drafter of kind `{training.options.name}` for {job.target}

It drafts for this one target, in speculative decoding, and changes nothing of what the target says. Trained with:

```sh
{_command(training, job)}
```

## What it learned from

{_answers(job)}.

| prompts | texts | answer tokens |
|---|---|---|
{rows}

## How

{_settings(job)}.

## How well it does

{_figures(report)}
"""


def _answers(job: TrainingJob) -> str:
    sampled = f"every second one greedy, the others at temperature {job.temperature:g}" if job.temperature else "greedy"
    given = "as the files give them, and where they give none, " if job.given_answers else ""
    return f"Answers {given}by the target itself, at most {job.answer_tokens} tokens each, {sampled}"


def _command(training: HeadTraining, job: TrainingJob) -> str:
    """What was typed, with every option that is not the default, and files by their names."""
    options = ",".join(f"{name}={value}" for name, value in attrs.asdict(training.options).items())
    words = ["talon train", f"{training.options.name}:{options}", "--model", job.target]
    for field in attrs.fields(TrainingJob):
        value = getattr(job, field.name)
        if field.name in ("target", "out", "held_out") or value == field.default:
            continue
        option = "--" + field.name.replace("_", "-")
        if field.name == "prompts":
            words += [word for file in value for word in (option, file.name)]
        elif isinstance(value, Path):
            words += [option, value.name]
        else:
            words += [option] if value is True else [option, str(value)]
    return " ".join([*words, "--out", "FOLDER"])


def _settings(job: TrainingJob) -> str:
    return (
        f"{job.epochs:g} passes over the texts in batches of {job.batch_tokens} tokens, learning rate up to "
        f"{job.learning_rate:g} (cosine), texts cut at {job.max_length} tokens, seed {job.seed}"
        + (f", begun with the weights of `{job.start.name}`" if job.start is not None else "")
    )


def _figures(report: Mapping[str, Any]) -> str:
    shares = [value for name, value in report.items() if name.startswith("eval_acceptance_")]
    if not shares:
        return "No texts were held out."
    listed = ", ".join(f"{100 * share:.1f}" for share in shares)
    return (
        f"On held-out texts of the same kinds, the first 1, 2, ... {len(shares)} drafted tokens of a chain are all "
        f"accepted, greedily, in {listed} % of places."
    )
