"""Fitting a head to a target's texts with the transformers `Trainer`."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from talon_drafters.feature_drafter import shared_embedding
from talon_drafters.training.answers import Text
from talon_drafters.training.optimizer import optimizer_for
from talon_drafters.training.recipe import Batch, HeadTraining, StepCounts, Truth
from talon_drafters.training.store import StateStore
from talon_drafters.training.target_states import TargetLaw, TargetStates


@attrs.frozen
class Schedule:
    """How long and how hard a head is trained.

    Attributes:
        epochs: passes over the texts.
        batch_tokens: tokens of a batch, padding included.
        learning_rate: the highest.
        warmup: share of the steps in which it rises.
        seed: for the order of the texts and the head's first weights.
        save_every: optimizer steps between checkpoints, and between reports on held-out texts.
    """

    epochs: float = 2.0
    batch_tokens: int = 2048
    learning_rate: float = 2e-3
    warmup: float = 0.03
    seed: int = 0
    save_every: int = 200


def draft_vocabulary(texts: Sequence[Text], vocab_size: int, size: int) -> Tensor:
    """The tokens that are most frequent in the answers, and then the lowest, shape `(size,)`, int64, ascending.

    Low numbers come first in most tokenizers because they are frequent.
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    for text in texts:
        np.add.at(counts, text.ids[text.prompt :], 1)
    order = np.argsort(-counts, kind="stable")[:size]
    return torch.from_numpy(np.sort(order))


class Texts(Dataset[tuple[Text, Tensor | None]]):
    """Texts and, where there is a store, the target's states.

    Args:
        texts: as `usable` gives them.
        store: of the same texts.
        numbers: which texts of the store these are.
    """

    def __init__(
        self, texts: Sequence[Text], store: StateStore | None = None, numbers: Sequence[int] | None = None
    ) -> None:
        self.texts = texts
        self._store = store
        self._numbers = numbers if numbers is not None else range(len(texts))

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[Text, Tensor | None]:
        return self.texts[index], self._store[self._numbers[index]] if self._store is not None else None


def usable(texts: Sequence[Text], max_length: int) -> list[Text]:
    """Texts cut to a length, without those that have no answer then."""
    cut = (attrs.evolve(text, ids=text.ids[:max_length]) for text in texts)
    return [text for text in cut if len(text.ids) >= 3 and text.prompt < len(text.ids)]


def collate(items: Sequence[tuple[Text, Tensor | None]]) -> dict[str, Tensor]:
    """The fields of a `Batch`, and under `states` what a store has of the target's."""
    texts = [text for text, _ in items]
    longest = max(len(text.ids) for text in texts)
    ids = torch.zeros((len(texts), longest), dtype=torch.int64)
    firsts = [max(text.prompt - 2, 0) for text in texts]
    most = max(len(text.ids) - 2 - first for text, first in zip(texts, firsts, strict=True))
    starts = torch.full((len(texts), most), -1, dtype=torch.int64)
    for row, (text, first) in enumerate(zip(texts, firsts, strict=True)):
        ids[row, : len(text.ids)] = torch.as_tensor(text.ids)
        rows = torch.arange(first, len(text.ids) - 2)
        starts[row, : len(rows)] = rows
    batch = {"ids": ids, "lengths": torch.tensor([len(text.ids) for text in texts]), "starts": starts}
    found = [states for _, states in items if states is not None]
    if found:
        batch["states"] = torch.nn.utils.rnn.pad_sequence(found, batch_first=True)
    return batch


class LengthBatches(Sampler[list[int]]):
    """Batches of texts of like length and of a fixed number of tokens, in another order each epoch.

    Args:
        texts: what they are made of.
        batch_tokens: most tokens of a batch, padding included; a longer text is a batch of its own.
        seed: of the order; None for the order of the lengths.
        share: which of the processes that train together this one is, and how many there are; each gets as many
            batches, and none gets another's.

    Raises:
        ValueError: if there are fewer batches than processes.
    """

    def __init__(self, texts: Texts, batch_tokens: int, seed: int | None, share: tuple[int, int] = (0, 1)) -> None:
        self.texts = texts
        self._lengths = [len(text.ids) for text in texts.texts]
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._share = share
        self._epoch = 0
        self._count = len(self._batches(0))
        if not self._count and self._lengths:
            raise ValueError(
                f"{len(self._lengths)} texts do not make a batch for each of {share[1]} processes; lower batch_tokens"
            )

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[int]]:
        batches = self._batches(self._epoch)
        self._count = len(batches)
        yield from batches
        self._epoch += 1

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def _batches(self, epoch: int) -> list[list[int]]:
        rng = np.random.default_rng(None if self._seed is None else [self._seed, 0])
        noise = rng.random(len(self._lengths)) * 8  # so that the same texts do not always meet
        order = np.argsort(np.array(self._lengths) + noise, kind="stable") if self._seed is not None else None
        if order is None:
            order = np.argsort(self._lengths, kind="stable")
        batches: list[list[int]] = [[]]
        longest = 0
        for index in order.tolist():
            longest = max(longest, self._lengths[index])
            if batches[-1] and (len(batches[-1]) + 1) * longest > self._batch_tokens:
                batches.append([])
                longest = self._lengths[index]
            batches[-1].append(index)
        if self._seed is not None:
            np.random.default_rng([self._seed, epoch + 1]).shuffle(batches)
        rank, count = self._share
        return batches[rank : len(batches) // count * count : count]


class Fitted(nn.Module):
    """A head as the `Trainer` sees it: from texts to a loss. The target is no part of its state."""

    def __init__(self, training: HeadTraining, head: nn.Module, model: Any, target_ids: Tensor) -> None:
        super().__init__()
        self.head = head
        states = TargetStates(model, training.features(model.config.get_text_config().num_hidden_layers))
        drafted = torch.zeros(model.get_output_embeddings().weight.shape[0], dtype=torch.bool)
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

    def __init__(
        self, fitted: Fitted, batches: LengthBatches, held_out: Texts, schedule: Schedule, **kwargs: Any
    ) -> None:
        self._batches, self._held_out, self._schedule = batches, held_out, schedule
        super().__init__(
            model=fitted, train_dataset=batches.texts, eval_dataset=held_out, data_collator=collate, **kwargs
        )

    def get_train_dataloader(self) -> DataLoader[Any]:
        # not prepared by accelerate, which shares out batches of one size only
        return DataLoader(self._batches.texts, batch_sampler=self._batches, collate_fn=collate)

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
        batches = LengthBatches(self._held_out, self._schedule.batch_tokens, None)
        with torch.no_grad():
            for batch in DataLoader(self._held_out, batch_sampler=batches, collate_fn=collate):
                with self.autocast_smart_context_manager():
                    fitted(**self._prepare_inputs(batch))
        report = {f"{metric_key_prefix}_{name}": value for name, value in acceptance(fitted.counts).items()}
        fitted.counts = before
        fitted.train()
        self.log(report)
        self.callback_handler.on_evaluate(self.args, self.state, self.control, report)
        return report


def fit(
    training: HeadTraining,
    model: Any,
    target_ids: Tensor,
    texts: Texts,
    held_out: Texts,
    folder: Path,
    schedule: Schedule,
    *,
    resume: bool = False,
    callbacks: Sequence[TrainerCallback] = (),
    start: Any = None,
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
        schedule: how long and how hard.
        resume: go on from the last checkpoint in `folder`.
        callbacks: for progress.
        start: a state of the head to start from, by parameter name.
        share: as `LengthBatches` takes it.
    """
    torch.manual_seed(schedule.seed)
    model.requires_grad_(False)
    head = training.make(model, target_ids)
    head.to(device=model.device, dtype=torch.float32)
    if start is not None:
        head.load_state_dict(start)
    fitted = Fitted(training, head, model, target_ids)
    batches = LengthBatches(texts, schedule.batch_tokens, schedule.seed, share)
    steps = math.ceil(len(batches) * schedule.epochs)
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        learning_rate=schedule.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.05},
        warmup_steps=max(1, int(schedule.warmup * steps)),
        max_grad_norm=1.0,
        bf16=model.dtype == torch.bfloat16,
        use_cpu=model.device.type == "cpu",
        logging_steps=20,
        eval_strategy="steps" if len(held_out) else "no",
        eval_steps=schedule.save_every,
        save_steps=schedule.save_every,
        save_total_limit=2,
        report_to=[],
        disable_tqdm=True,
        seed=schedule.seed,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    trainer = HeadTrainer(
        fitted,
        batches,
        held_out,
        schedule,
        args=args,
        callbacks=list(callbacks),
        optimizers=(optimizer_for(head, schedule.learning_rate), None),
    )
    trainer.remove_callback(PrinterCallback)
    checkpoints = sorted(folder.glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint=bool(resume and checkpoints))
    return head
