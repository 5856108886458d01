"""`talon train`: a drafter for a target, from its own answers."""

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from talon_core.basics.paths import check_folder
from talon_core.cli import options as opts
from talon_core.cli.output import print_json, stdout
from talon_core.errors import blaming_bugs
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build
from talon_core.recipe import Recipe, TrainingJob

DTYPES = ("auto", "float32", "bfloat16")


def train(
    recipe: Annotated[str, typer.Argument(help="What to train, as name:option=value,... (talon list recipes).")],
    out: Annotated[Path, typer.Option(help="Keep everything in this folder; a second run goes on from there.")],
    model: opts.Model = opts.DEFAULT_MODEL,
    trust_remote_code: opts.TrustRemoteCode = False,
    prompts: Annotated[
        list[Path] | None, typer.Option(help="A file of prompts: JSON lines, or one prompt a line; several times.")
    ] = None,
    self_written: Annotated[
        int | None, typer.Option(parser=opts.whole_number, metavar="N", help="Prompts the target writes itself.")
    ] = None,
    summaries: Annotated[
        int | None, typer.Option(parser=opts.whole_number, metavar="N", help="Long texts of its own it summarizes.")
    ] = None,
    library: Annotated[bool, typer.Option("--library", help="Let it complete Python's standard library.")] = False,
    given_answers: Annotated[
        bool, typer.Option("--given-answers", help="Learn from answers in the files, not from the target's own.")
    ] = False,
    answer_tokens: Annotated[
        int | None, typer.Option(parser=opts.whole_number, metavar="N", help="Most tokens of an answer; 256.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(parser=opts.number, metavar="T", help="Of every second answer; 0.7.")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(parser=opts.number, metavar="X", help="Passes over the texts; 3.")
    ] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(parser=opts.whole_number, metavar="N", help="Tokens of a training batch; 2048.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(parser=opts.whole_number, metavar="N", help="Answers written together; 64.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(parser=opts.number, metavar="X", help="The highest; 0.002.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(parser=opts.whole_number, metavar="N", help="Tokens of a text that are used; 768.")
    ] = None,
    save_every: Annotated[
        int | None, typer.Option(parser=opts.whole_number, metavar="N", help="Steps between checkpoints; 200.")
    ] = None,
    keep_states: Annotated[
        bool, typer.Option("--keep-states", help="Keep the target's states on disk; faster, takes gigabytes.")
    ] = False,
    start: Annotated[Path | None, typer.Option(help="Begin with the weights of an earlier training's folder.")] = None,
    seed: Annotated[int | None, typer.Option(parser=opts.whole_number, metavar="S", help="Of all drawing; 0.")] = None,
    dtype: Annotated[
        str, typer.Option(help="The target's type: float32, bfloat16 (several times faster on new CPUs), or auto.")
    ] = "auto",
    as_json: opts.Json = False,
) -> None:
    """Train a drafter for a model, on prompts that the model answers itself.

    Stages: prompts, answers, training, export. Each goes on where it was if the command is given again. The drafter is
    in OUT/<recipe>/drafter, in a layout that other engines read too.
    """
    chosen: Recipe = build(load_registry(), "recipe", recipe)
    given: dict[str, Any] = {
        "prompts": tuple(prompts or ()),
        "self_written": self_written,
        "summaries": summaries,
        "library": library,
        "given_answers": given_answers,
        "answer_tokens": answer_tokens,
        "temperature": temperature,
        "epochs": epochs,
        "batch_tokens": batch_tokens,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "max_length": max_length,
        "save_every": save_every,
        "keep_states": keep_states,
        "start": start,
        "seed": seed,
        "dtype": dtype,
    }
    # the drafter's files name the target, and are for other machines too
    target = Path(model).resolve().name if Path(model).exists() else model
    job = _job(target, out, {name: value for name, value in given.items() if value is not None})
    for file in job.prompts:
        if not file.is_file():
            raise ValueError(f"--prompts is '{file}'; it must be a file")
    check_folder(out, "--out")
    if start is not None and not (start / "head.safetensors").is_file():
        raise ValueError(f"--start is '{start}'; it must be OUT/<recipe> of an earlier training")
    if dtype not in DTYPES:
        raise ValueError(f"--dtype is '{dtype}'; it must be one of {', '.join(DTYPES)}")
    if not job.prompts and not job.library and not job.self_written and not (out / "prompts.jsonl").exists():
        raise ValueError("there is nothing to train on: give --prompts FILE, --self-written N or --library")
    report = _train(chosen, model, job, trust_remote_code)
    if as_json:
        print_json(report)
    else:
        stdout().print(f"the drafter is in {report['path']}", soft_wrap=True)


def _job(target: str, out: Path, given: dict[str, Any]) -> TrainingJob:
    try:
        return TrainingJob(target, out, **given)
    except ValueError as error:
        # attrs' validators begin with the field in quotes
        raise ValueError(re.sub(r"^'(\w+)'", lambda name: "--" + name[1].replace("_", "-"), error.args[0])) from None


def _train(recipe: Recipe, model: str, job: TrainingJob, trust_remote_code: bool) -> dict[str, Any]:
    import torch

    from talon_core.cli.session import open_session

    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local and torch.cuda.is_available():  # one of several processes that `accelerate launch` started
        torch.cuda.set_device(local)
    dtype = {} if job.dtype == "auto" else {"dtype": getattr(torch, job.dtype)}
    session = open_session(model, trust_remote_code=trust_remote_code, dequantize=True, **dtype)
    with blaming_bugs("recipe", recipe, "train"):
        return dict(recipe.train(session.model, session.tokenizer, job))
