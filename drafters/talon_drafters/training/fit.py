"""Fitting a head to a target's texts with the transformers `Trainer`."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from talon_core.basics.disk import writing
from talon_core.runtime.embeddings import shared_embedding, vocabulary_size
from talon_drafters.training.batches import LengthBatches, Texts, collate
from talon_drafters.training.head_training import Batch, HeadTraining, StepCounts, Truth
from talon_drafters.training.optimizer import optimizer_for
from talon_drafters.training.target_states import TargetLaw, TargetStates


@attrs.frozen
class Effort:
    """How long and how hard a head is trained.

    Attributes:
        epochs: passes over the texts.
        batch_tokens: tokens of a batch, padding included.
        learning_rate: the highest.
        seed: for the order of the texts and the head's first weights.
        save_every: optimizer steps between checkpoints, and between reports on held-out texts.
        warmup: share of the steps in which the rate rises.
    """

    epochs: float
    batch_tokens: int
    learning_rate: float
    seed: int
    save_every: int
    warmup: float = 0.03


class Fitted(nn.Module):
    """A head as the `Trainer` sees it: from texts to a loss. The target is no part of its state."""

    def __init__(self, training: HeadTraining, head: nn.Module, model: Any, target_ids: Tensor) -> None:
        super().__init__()
        self.head = head
        states = TargetStates(model, training.features(model.config.get_text_config().num_hidden_layers))
        drafted = torch.zeros(vocabulary_size(model), dtype=torch.bool)
        drafted[target_ids] = True
        law = TargetLaw.of(model, target_ids)
        self._fixed = (training, states, law, drafted.to(model.device), shared_embedding(model))
        self.counts: list[StepCounts] = []

    def forward(self, ids: Tensor, lengths: Tensor, starts: Tensor, states: Tensor | None = None) -> dict[str, Tensor]:
        training, target, law, drafted, embed = self._fixed
        with torch.no_grad(), torch.autocast(ids.device.type, enabled=False):
            if states is None:
                features, last = target(ids)
            else:
                states = states.to(law.weight.dtype)
                width = states.shape[-1] - law.weight.shape[1]
                features, last = states[..., :width], states[..., width:]
            embeddings = embed(ids)
        truth = Truth(embeddings, features, last, law, drafted)
        counts = training.loss(self.head, Batch(ids, lengths, starts), truth)
        self.counts.append(attrs.evolve(counts, loss=counts.loss.detach()))
        return {"loss": counts.loss}


def acceptance(counts: Sequence[StepCounts]) -> dict[str, float]:
    """Shares of accepted tokens by depth, and what a chain of this depth would give a round.

    `acceptance_d` is the share of places where the first `d` drafted tokens would all be accepted, greedily.
    """
    rows = torch.stack([one.rows for one in counts]).sum(0)
    agreed = torch.stack([one.agreed for one in counts]).sum(0)
    shares = (agreed / rows.clamp(min=1)).tolist()
    report = {f"acceptance_{depth}": share for depth, share in enumerate(shares, start=1)}
    return {**report, "chain_tokens": 1 + sum(shares), "loss": float(torch.stack([one.loss for one in counts]).mean())}


class HeadTrainer(Trainer):  # type: ignore[misc]  # transformers has no complete types
    """The transformers `Trainer` with batches by length, and acceptance by depth in its reports."""

    def __init__(self, fitted: Fitted, batches: LengthBatches, held_out: Texts, effort: Effort, **kwargs: Any) -> None:
        self._batches, self._held_out, self._effort = batches, held_out, effort
        self.evaluated_at: int | None = None  # the step of the last report
        super().__init__(
            model=fitted, train_dataset=batches.texts, eval_dataset=held_out, data_collator=collate, **kwargs
        )

    def get_train_dataloader(self) -> DataLoader[Any]:
        # not prepared by accelerate, which shares out batches of one size only
        return DataLoader(self._batches.texts, batch_sampler=self._batches, collate_fn=collate)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with writing(f"a checkpoint in '{self.args.output_dir}'"):
            super()._save_checkpoint(model, trial)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return model(**inputs)["loss"]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        fitted = self.accelerator.unwrap_model(self.model)
        if "loss" in logs and fitted.counts:
            logs = {**logs, **acceptance(fitted.counts)}
            fitted.counts.clear()
        super().log(logs, *args, **kwargs)

    def evaluate(self, *_: Any, metric_key_prefix: str = "eval", **__: Any) -> dict[str, float]:
        fitted = self.accelerator.unwrap_model(self.model)
        before, fitted.counts = fitted.counts, []
        fitted.eval()
        batches = LengthBatches(self._held_out, self._effort.batch_tokens, None)
        with torch.no_grad():
            for batch in DataLoader(self._held_out, batch_sampler=batches, collate_fn=collate):
                with self.autocast_smart_context_manager():
                    fitted(**self._prepare_inputs(batch))
        report = {f"{metric_key_prefix}_{name}": value for name, value in acceptance(fitted.counts).items()}
        fitted.counts = before
        fitted.train()
        self.evaluated_at = self.state.global_step
        self.log(report)
        self.callback_handler.on_evaluate(self.args, self.state, self.control, report)
        return report


class _PassOrder(TrainerCallback):  # type: ignore[misc]  # transformers has no complete types
    """Tells the batches which pass over the texts begins, also where a training goes on in the middle of one."""

    def __init__(self, batches: LengthBatches) -> None:
        self._batches = batches

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._batches.set_epoch(state.global_step // len(self._batches))


def fit(
    training: HeadTraining,
    model: Any,
    target_ids: Tensor,
    texts: Texts,
    held_out: Texts,
    folder: Path,
    effort: Effort,
    *,
    resume: bool = False,
    callbacks: Sequence[TrainerCallback] = (),
    start: Mapping[str, Tensor] | None = None,
    share: tuple[int, int] = (0, 1),
) -> nn.Module:
    """Train a head and return it.

    Args:
        training: what is trained, and how.
        model: the target; it stays as it is.
        target_ids: the draft vocabulary, shape `(draft_vocab,)`, int64, ascending.
        texts: what to learn from.
        held_out: what acceptance is reported on.
        folder: for checkpoints.
        effort: how long and how hard.
        resume: go on from the last checkpoint in `folder`.
        callbacks: for progress.
        start: a state of the head to start from, by parameter name.
        share: as `LengthBatches` takes it.

    Raises:
        ValueError: if `start` is the state of a head of another shape.
    """
    torch.manual_seed(effort.seed)
    model.requires_grad_(False)
    head = training.make(model, target_ids)
    head.to(device=model.device, dtype=torch.float32)
    if start is not None:
        _check_start(head, start)
        head.load_state_dict(start)
    fitted = Fitted(training, head, model, target_ids)
    batches = LengthBatches(texts, effort.batch_tokens, effort.seed, share)
    steps = math.ceil(len(batches) * effort.epochs)
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        learning_rate=effort.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.05},
        warmup_steps=max(1, int(effort.warmup * steps)),
        max_grad_norm=1.0,
        bf16=model.dtype == torch.bfloat16,
        use_cpu=model.device.type == "cpu",
        logging_steps=20,
        eval_strategy="steps" if len(held_out) else "no",
        eval_steps=effort.save_every,
        save_steps=effort.save_every,
        save_total_limit=2,
        report_to=[],
        disable_tqdm=True,
        seed=effort.seed,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    args._n_gpu = min(args.n_gpu, 1)  # on several, threads of this process would share a target that is on one
    trainer = HeadTrainer(
        fitted,
        batches,
        held_out,
        effort,
        args=args,
        callbacks=[_PassOrder(batches), *callbacks],
        optimizers=(optimizer_for(head, effort.learning_rate), None),
    )
    trainer.remove_callback(PrinterCallback)
    latest = latest_checkpoint(folder) if resume else None
    trainer.train(resume_from_checkpoint=None if latest is None else str(latest))
    if len(held_out) and trainer.evaluated_at != trainer.state.global_step:
        trainer.evaluate()
    return head


def latest_checkpoint(folder: Path) -> Path | None:
    """The latest checkpoint that is whole; None if there is none. One in which writing broke off is left out.

    The trainer writes its own state, from which it goes on, when all else is there.
    """
    found = [path for path in folder.glob("checkpoint-*") if path.name.partition("-")[2].isdecimal()]
    for path in sorted(found, key=lambda one: -int(one.name.partition("-")[2])):
        try:
            json.loads(path.joinpath("trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        return path
    return None


def _check_start(head: nn.Module, start: Mapping[str, Tensor]) -> None:
    wanted = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in start.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise ValueError(
                f"the weights to start from have {name} of shape {found.get(name, 'none')}; this recipe makes it of "
                f"shape {wanted.get(name, 'none')}, so start from a training by it with the same options"
            )
