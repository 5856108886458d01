"""A training job from prompts to a drafter's folder; every stage goes on where it was interrupted."""

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import TrainerCallback

from talon_core.basics import records
from talon_core.basics.paths import LOCK, alone, small_text, utf8, write_whole
from talon_core.errors import first_line
from talon_core.recipe import TrainingJob
from talon_core.runtime.embeddings import vocabulary_size
from talon_drafters.checkpoints.files import fingerprint
from talon_drafters.checkpoints.writing import save_whole
from talon_drafters.training.answers import Text, continue_texts, read_texts, write_answers
from talon_drafters.training.batches import Texts, draft_vocabulary, usable
from talon_drafters.training.card import model_card
from talon_drafters.training.fit import Effort, fit
from talon_drafters.training.head_training import HeadTraining
from talon_drafters.training.memory import keep_freed_memory
from talon_drafters.training.processes import Processes
from talon_drafters.training.prompts import (
    SELF_WRITTEN,
    Example,
    chat_opening,
    library_examples,
    openings,
    read_examples,
    summary_examples,
    written_examples,
)
from talon_drafters.training.store import StateStore
from talon_drafters.training.target_states import TargetStates

NOT_COMPARED = ("out", "batch_size", "prompts")
"""Settings that may change between two runs for the same folder, but for what the files of prompts hold."""

OF_THE_TEXTS = ("self_written", "summaries", "library", "given_answers", "answer_tokens", "temperature", "seed")
"""Settings of the prompts and answers, which all recipes in a folder share."""

PROMPT_TOKENS = 96
"""Most tokens of a prompt that the target writes itself."""

HEAD_FILE = "head.safetensors"
"""The trained head as it is, from which another training may start."""


def run_job(training: HeadTraining, model: Any, tokenizer: Any, job: TrainingJob) -> Mapping[str, Any]:
    """As `Recipe.train`."""
    processes = Processes(on_cpu=model.device.type == "cpu")
    job.out.mkdir(parents=True, exist_ok=True)
    refused = f"another training is writing into '{job.out}'; wait for it, or give another folder"
    with alone(job.out / LOCK, refused) if processes.first else nullcontext():
        return _run(training, model, tokenizer, job, processes)


def _run(
    training: HeadTraining, model: Any, tokenizer: Any, job: TrainingJob, processes: Processes
) -> Mapping[str, Any]:
    """The stages, while no other training writes into the folder."""
    console = Console(stderr=True, highlight=False, quiet=not processes.first)
    folder = job.out / training.options.name
    with processes.first_alone():
        _check_same_texts(model, job)
        _check_same_job(training, job, folder)
    model.eval().requires_grad_(False)
    keep_freed_memory()
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    ) as progress:
        with processes.first_alone():
            examples = _examples(model, tokenizer, job, progress)
            texts = usable(_answers(model, tokenizer, examples, job, progress), job.max_length)
            store = _states(training, model, texts, job, progress) if job.keep_states else None
        held = _held_out(texts, job)
        kept = [number for number in range(len(texts)) if number not in held]
        if not kept:
            raise ValueError(f"{job.out} holds no text with an answer to learn from; give prompts")
        vocab_size = vocabulary_size(model)
        start = _start(job.start, vocab_size) if job.start is not None else None
        tokens = start.pop("target_ids") if start is not None else None
        size = min(training.options.draft_vocab, vocab_size)
        if tokens is not None and len(tokens) != size:
            raise ValueError(f"{job.start} has a draft vocabulary of {len(tokens)}; give draft_vocab={len(tokens)}")
        if tokens is None:
            tokens = draft_vocabulary([texts[number] for number in kept], vocab_size, size)
        learning, reporting = (Texts([texts[number] for number in part], store, part) for part in (kept, sorted(held)))
        report = _Report(progress, folder / "log.jsonl" if processes.first else None)
        effort = Effort(job.epochs, job.batch_tokens, job.learning_rate, job.seed, job.save_every)
        head = fit(
            training,
            model,
            tokens,
            learning,
            reporting,
            folder / "checkpoints",
            effort,
            resume=True,
            callbacks=[report],
            start=start,
            share=processes.share,
        )
    path = folder / "drafter"
    learned = [texts[number] for number in kept]
    if processes.first:
        save_whole(folder / HEAD_FILE, {**head.state_dict(), "target_ids": tokens})
        training.export(head, tokens, {"talon": {"target": job.target, **fingerprint(model)}}, path)
        write_whole(path / "README.md", model_card(training, job, learned, report.last))
    answer_tokens = sum(len(text.ids) - text.prompt for text in learned)
    written = sum(example.source == SELF_WRITTEN for example in examples)
    counts = {"texts": len(kept), "self_written": written, "answer_tokens": answer_tokens}
    return {"path": str(path), **counts, **report.last}


def _check_same_job(training: HeadTraining, job: TrainingJob, folder: Path) -> None:
    """Refuse to mix two jobs in one folder."""
    settings = {
        "recipe": {"name": training.options.name, **attrs.asdict(training.options)},
        "job": attrs.asdict(job, filter=lambda field, _: field.name not in NOT_COMPARED),
    }
    folder.mkdir(parents=True, exist_ok=True)
    _check_same(settings, folder / "job.json")


def _check_same_texts(model: Any, job: TrainingJob) -> None:
    """Refuse to take another target's texts, or texts of other prompts, for this job's."""
    files = [hashlib.sha256(file.read_bytes()).hexdigest() for file in job.prompts]
    settings = {
        "target": {"name": job.target, **fingerprint(model)},
        "texts": {"prompts": files, **{name: getattr(job, name) for name in OF_THE_TEXTS}},
    }
    _check_same(settings, job.out / "texts.json")


def _check_same(settings: Mapping[str, Any], file: Path) -> None:
    """Compare settings with those in a file, or write them there if there is none.

    Raises:
        ValueError: if they differ.
    """
    text = json.dumps(settings, indent=2, default=str) + "\n"
    if file.exists():
        before, now = _written_before(file, settings), json.loads(text)
        for part in settings:
            if before[part] != now[part]:
                changed = [name for name, value in now[part].items() if before[part].get(name) != value]
                raise ValueError(
                    f"{file.parent} belongs to a training with another {part} ({', '.join(changed)}); "
                    "give another --out, or the same settings to go on"
                )
    write_whole(file, text)


def _written_before(file: Path, parts: Iterable[str]) -> Mapping[str, Any]:
    """What a training has written of its settings."""
    try:
        found = records.dictionary(records.parsed(small_text(file)))
        records.holding(dict.fromkeys(parts, records.dictionary))(found)
    except ValueError as error:
        raise ValueError(f"'{file}' is not what a training has written ({error}); give another --out") from error
    return found


def _prompts_before(file: Path) -> list[Example]:
    """The prompts that a training has written."""
    readers = {"prompt": records.words, "answer": records.maybe(records.words), "source": records.words}
    found = []
    try:
        for line in utf8(file.read_bytes(), "it").splitlines():
            found.append(records.make(Example, records.parsed(line), readers))
    except ValueError as error:
        raise ValueError(f"'{file}' is not what a training has written ({error}); give another --out") from error
    return found


def _start(folder: Path, vocab_size: int) -> dict[str, Tensor]:
    """What an earlier training has left to begin with: a head's state, and `target_ids`."""
    file = folder / HEAD_FILE
    try:
        found = load_file(file)
    except SafetensorError as error:
        raise ValueError(f"'{file}', to start from, cannot be read: {first_line(error)}") from error
    tokens = found.get("target_ids")
    if tokens is None or tokens.dtype != torch.int64 or tokens.ndim != 1 or not len(tokens):
        raise ValueError(f"'{file}' has no target_ids; it must be what a training has left, to start from")
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ValueError(f"'{file}' drafts tokens outside the vocabulary, 0 to {vocab_size - 1}; give another one")
    return found


def _examples(model: Any, tokenizer: Any, job: TrainingJob, progress: Progress) -> list[Example]:
    """The prompts, all kinds mixed; written to the folder once, because their order must stay."""
    file = job.out / "prompts.jsonl"
    if file.exists():
        return _prompts_before(file)
    found = [example for path in job.prompts for example in read_examples(path)]
    if not job.given_answers:
        found = [attrs.evolve(example, answer=None) for example in found]
    if job.library:
        found += library_examples(job.seed)
    if job.self_written:
        found += _self_written(model, tokenizer, job, progress)
    if not found and job.self_written:
        raise ValueError(
            f"there is nothing to train on: none of the {job.self_written} prompts that the target has written can be "
            "used; ask for more with --self-written N, or give --prompts FILE or --library"
        )
    if not found:
        raise ValueError("there is nothing to train on: give --prompts FILE, --self-written N or --library")
    random.Random(job.seed).shuffle(found)
    write_whole(file, "".join(json.dumps(attrs.asdict(example)) + "\n" for example in found))
    return found


def _self_written(model: Any, tokenizer: Any, job: TrainingJob, progress: Progress) -> list[Example]:
    """Prompts the target writes when it is given a user's first words alone (Magpie: Xu et al., arXiv 2406.08464)."""
    firsts = openings(job.self_written, job.seed)
    before = chat_opening(tokenizer)
    prompts = [tokenizer(before + first.rstrip(" "), add_special_tokens=False)["input_ids"] for first in firsts]
    bar = progress.add_task("prompts", total=len(firsts))
    torch.manual_seed(job.seed)
    texts = [""] * len(firsts)
    ended = 0
    found = continue_texts(
        model, tokenizer, prompts, max_new_tokens=PROMPT_TOKENS, temperature=0.8, batch_size=job.batch_size
    )
    for place, new in found:
        if len(new) < PROMPT_TOKENS:  # what was cut off is no whole prompt
            texts[place] = firsts[place].rstrip(" ") + tokenizer.decode(new, skip_special_tokens=True)
            ended += 1
        progress.advance(bar)
    kept = written_examples(texts)
    progress.console.print(
        f"{len(kept)} of {len(firsts)} self-written prompts are kept: {len(firsts) - ended} were cut off at "
        f"{PROMPT_TOKENS} tokens, {ended - len(kept)} were too short or there twice"
    )
    return kept


def _answers(
    model: Any, tokenizer: Any, examples: Sequence[Example], job: TrainingJob, progress: Progress
) -> list[Text]:
    file = job.out / "answers.jsonl"
    done = len(read_texts(file))
    bar = progress.add_task("answers", total=max(len(examples) + job.summaries, done), completed=done)
    torch.manual_seed(job.seed)

    def answer(asked: Sequence[Example]) -> list[Text]:
        write_answers(
            model,
            tokenizer,
            asked,
            file,
            max_new_tokens=job.answer_tokens,
            temperature=job.temperature,
            batch_size=job.batch_size,
            advance=lambda texts, _: progress.advance(bar, texts),
        )
        return sorted(read_texts(file), key=lambda text: text.index)

    texts = answer(examples)
    if job.summaries:
        answers = [text for text in texts if text.index < len(examples)]
        written = (tokenizer.decode(text.ids[text.prompt :], skip_special_tokens=True) for text in answers)
        long = summary_examples(list(written), job.summaries)
        if len(long) < job.summaries:
            progress.console.print(
                f"{len(long)} of {job.summaries} texts to summarize are made: too few answers are long"
            )
        texts = answer([*examples, *long])
    progress.update(bar, completed=len(texts), total=len(texts))
    return texts


def _held_out(texts: Sequence[Text], job: TrainingJob) -> set[int]:
    count = min(round(job.held_out * len(texts)), 512)
    return set(random.Random(job.seed).sample(range(len(texts)), count))


def _states(
    training: HeadTraining, model: Any, texts: Sequence[Text], job: TrainingJob, progress: Progress
) -> StateStore:
    """The states that a head reads and the last ones, in a file that heads which read the same ones share."""
    sizes = model.config.get_text_config()
    states = TargetStates(model, training.features(sizes.num_hidden_layers))
    width = (len(states.features) + 1) * sizes.hidden_size
    file = job.out / ("-".join(["states", *map(str, states.features)]) + ".bin")
    store = StateStore(file, texts, width, fingerprint(model))
    bar = progress.add_task("states", total=len(texts), completed=store.done)
    store.fill(states, job.batch_tokens, lambda count: progress.advance(bar, count))
    return store


class _Report(TrainerCallback):  # type: ignore[misc]  # transformers has no complete types
    """The training's progress bar, and its figures as JSON lines."""

    def __init__(self, progress: Progress, file: Path | None) -> None:
        self._progress = progress
        self._file = file
        self._bar: Any = None
        self.last: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._bar = self._progress.add_task("training", total=state.max_steps, completed=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._progress.update(self._bar, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as out:
                out.write(json.dumps({"step": state.global_step, **(logs or {})}) + "\n")
        if logs and "eval_loss" in logs:
            self.last = {name: float(value) for name, value in logs.items() if name.startswith("eval_")}
            shares = [f"{100 * value:.0f}" for name, value in logs.items() if name.startswith("eval_acceptance_")]
            self._progress.console.print(
                f"step {state.global_step}: accepted by depth {' / '.join(shares)} %, "
                f"a chain gives {logs['eval_chain_tokens']:.2f} tokens a round (held-out texts, greedy)"
            )
