"""Training drafters: the loss is the definition's, unrolled steps are what drafting does, and training helps."""

import copy
import errno
import io
import json
import os
import re
import subprocess
import warnings
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from rich.console import Console
from rich.progress import Progress
from safetensors import SafetensorError
from safetensors.torch import save
from tokenizers import Tokenizer, models
from torch import nn
from transformers import PreTrainedTokenizerFast, Trainer, TrainerCallback, TrainingArguments

from talon_core.basics.paths import alone
from talon_core.cli import main
from talon_core.decoding.loading import decoder_for_model
from talon_core.drafter import Committed, Frontier, Part
from talon_core.plugins.parts import Parts
from talon_core.recipe import TrainingJob
from talon_core.runtime.embeddings import shared_embedding
from talon_core.runtime.executor import HostExecutor
from talon_core.tree import TokenTree
from talon_drafters import MedusaRecipe
from talon_drafters.checkpoints.files import read_checkpoint
from talon_drafters.eagle3.files import Eagle3Files
from talon_drafters.eagle3.options import default_states
from talon_drafters.eagle3.training import Eagle3Training
from talon_drafters.heads.feature_drafter import FeatureDrafter
from talon_drafters.heads.unrolled import unrolled
from talon_drafters.medusa.training import MedusaTraining
from talon_drafters.training.answers import Text, append_texts, continue_texts, read_texts
from talon_drafters.training.batches import LengthBatches, Texts, collate, draft_vocabulary, usable
from talon_drafters.training.fit import Effort, Fitted, _check_start, fit, latest_checkpoint
from talon_drafters.training.head_training import Batch, Truth
from talon_drafters.training.losses import soft_cross_entropy
from talon_drafters.training.optimizer import optimizer_for
from talon_drafters.training.prompts import (
    library_examples,
    openings,
    read_examples,
    summary_examples,
    written_examples,
)
from talon_drafters.training.store import StateStore
from talon_drafters.training.target_states import TargetLaw, TargetStates
from talon_drafters.training.unrolled import StepCounter
from talon_kernels.backends import ReferenceAttention
from talon_tests.tiny_models import tiny_model
from talon_tests.trained_heads import TRAINED, trainings

VOCAB = 97
TRAININGS = trainings(draft_vocab=VOCAB, steps=3)


def texts(count: int = 12, seed: int = 0) -> list[Text]:
    """Random texts of many lengths."""
    rng = np.random.default_rng(seed)
    made = []
    for index in range(count):
        length = int(rng.integers(4, 40))
        made.append(Text(rng.integers(3, VOCAB, length).tolist(), int(rng.integers(1, length)), index))
    return made


# The loss


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("rows", "piece"), [(1, 1), (16, 7), (2048, 256)])
def test_the_loss_and_its_gradients_are_those_of_the_definition(
    rows: int, piece: int, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("talon_drafters.training.losses.ROWS", rows)
    monkeypatch.setattr("talon_drafters.training.losses.PIECE", piece)
    torch.manual_seed(1)
    hidden = torch.randn(41, 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(50, 16, dtype=torch.float64, requires_grad=True)
    truth = torch.randn(20, 12, dtype=torch.float64)
    law = TargetLaw(torch.randn(50, 12, dtype=torch.float64), torch.randn(50, dtype=torch.float64), softcap=3.0)
    place, row_weight = torch.randint(0, 20, (41,)), torch.rand(41)

    bias = torch.randn(50, dtype=torch.float64) if biased else None
    loss, agree = soft_cross_entropy(hidden, weight, truth, place, law, row_weight, bias)
    loss.backward()
    got = (hidden.grad, weight.grad)
    hidden.grad = weight.grad = None

    wanted = torch.softmax(law.scores(truth[place]).double(), dim=-1)
    logp = torch.log_softmax(nn.functional.linear(hidden, weight, bias), dim=-1)
    definition = -((wanted * logp).sum(-1) * row_weight).sum()
    definition.backward()

    assert loss.item() == pytest.approx(definition.item(), rel=1e-6)
    for mine, plain in zip(got, (hidden.grad, weight.grad), strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-5)
    assert torch.equal(agree, logp.argmax(-1) == wanted.argmax(-1))


def test_a_law_that_is_the_targets_own_has_the_least_loss() -> None:
    torch.manual_seed(2)
    truth, weight = torch.randn(9, 12), torch.randn(30, 12)
    law, place, ones = TargetLaw(weight), torch.arange(9), torch.ones(9)
    least, agree = soft_cross_entropy(truth.clone(), weight, truth, place, law, ones)
    entropy = torch.distributions.Categorical(logits=truth @ weight.T).entropy().sum()
    assert least.item() == pytest.approx(entropy.item(), rel=1e-5)
    assert agree.all()
    more, _ = soft_cross_entropy(truth + 0.3 * torch.randn_like(truth), weight, truth, place, law, ones)
    assert more > least


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "cohere", "granite", "phi", "gpt2"])
def test_the_targets_law_is_the_models(architecture: str) -> None:
    model = tiny_model(architecture)
    ids = torch.randint(3, VOCAB, (2, 9), generator=torch.Generator().manual_seed(3))
    _, last = TargetStates(model, ())(ids)
    with torch.inference_mode():
        logits = model(input_ids=ids).logits
    some = torch.tensor([4, 9, 30, 96])
    torch.testing.assert_close(TargetLaw.of(model, some).scores(last), logits[..., some].float(), rtol=1e-4, atol=1e-4)


# Unrolled steps


def drafted_states(training: Eagle3Training, head: Any, model: Any, text: Text, start: int) -> list[np.ndarray]:
    """The laws of a chain drafted from row `start` on, along the text's own tokens, by the running drafter."""
    drafter = FeatureDrafter(
        head, shared_embedding(model), VOCAB, HostExecutor(ReferenceAttention(), torch.device("cpu"))
    )
    ids = np.array(text.ids, dtype=np.int64)
    features, _ = TargetStates(model, default_states(4))(torch.as_tensor(ids)[None])
    drafter.open(0, ids[: start + 2], len(ids))
    drafter.read({0: Part(0, start + 1, features[0, : start + 1])})
    tree, laws = TokenTree.root(int(ids[start + 1])), []
    for step in range(training.options.steps):
        (candidates,) = drafter.propose([Frontier(0, tree, np.array([step]), 1)]).candidates
        laws.append(candidates.law(0))
        if start + 2 + step >= len(ids):
            break
        tree = tree.extend(ids[[start + 2 + step]], np.array([step]), np.zeros(1))
    drafter.commit({0: Committed(ids[:1], np.zeros(1, dtype=np.int64), features[0, :1])})
    return laws


def test_an_unrolled_step_sees_what_a_drafted_node_sees() -> None:
    training = TRAININGS["eagle3"]
    assert isinstance(training, Eagle3Training)
    model = tiny_model("llama")
    some = usable(texts(), 64)[:4]
    tokens = torch.arange(10, 70)
    head = training.make(model, tokens).float()
    batch = Batch(**collate([(text, None) for text in some]))
    features, _ = TargetStates(model, default_states(4))(batch.ids)
    embeddings = shared_embedding(model)(batch.ids)
    compared = 0
    with torch.no_grad():
        steps = unrolled(head, embeddings, features[:, :-1], batch.starts, training.options.steps)
        for step, hidden in enumerate(steps):
            laws = torch.softmax(head.logits(hidden).double(), dim=-1)
            for row, text in enumerate(some):
                for place, start in enumerate(batch.starts[row].tolist()):
                    if start < 0 or start % 3 or start + 2 + step >= len(text.ids):
                        continue
                    drafted = drafted_states(training, head, model, text, start)[step]
                    np.testing.assert_allclose(laws[row, place], drafted[10:70], atol=1e-5)
                    compared += 1
    assert compared > 20


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "phi"])  # the last one's LM head has a bias
@pytest.mark.parametrize(
    "kind", [name for trained in TRAINED.values() if trained.counts_steps for name in trained.variants]
)
def test_a_head_is_trained_on_what_it_reads_when_it_drafts(
    kind: str, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, model = TRAININGS[kind], tiny_model(architecture)
    torch.manual_seed(1)
    if model.lm_head.bias is not None:
        model.lm_head.bias.data.normal_()
    head = training.make(model, torch.arange(VOCAB))
    for parameter in head.parameters():
        parameter.data = (parameter.data + 0.1 * torch.randn_like(parameter)).bfloat16().float()  # as in the files
    hidden: list[torch.Tensor] = []
    biases: list[torch.Tensor | None] = []

    class Kept(StepCounter):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            biases.append(self._bias)

        def add(self, given: torch.Tensor) -> None:
            hidden.append(given)
            super().add(given)

    monkeypatch.setattr(f"{type(training).__module__}.StepCounter", Kept)
    (text,) = usable(texts(), 64)[:1]
    batch = collate([(text, None)])
    Fitted(training, head, model, torch.arange(VOCAB))(**batch)
    training.export(copy.deepcopy(head), torch.arange(VOCAB), {}, tmp_path)
    spec = f"{training.options.name}:path={tmp_path}"
    decoder = decoder_for_model(model, None, Parts(spec, "chain:length=3", attention="reference", accelerate=False))
    assert decoder.drafter is not None
    ids = np.array(text.ids, dtype=np.int64)
    _, last = TargetStates(model, ())(torch.as_tensor(ids)[None])
    weight = TargetLaw.of(model, torch.arange(VOCAB)).weight
    for place, start in list(enumerate(batch["starts"][0].tolist()))[:4]:
        with decoder.target.session(), decoder.drafter.session(), torch.no_grad():
            decoder.drafter.open(0, ids[: start + 2], len(ids))
            decoder.drafter.read({0: Part(0, start + 1, last[0, : start + 1])})
            tree = TokenTree.root(int(ids[start + 1]))
            for step in range(3):
                (candidates,) = decoder.drafter.propose([Frontier(0, tree, np.array([step]), 1)]).candidates
                trained = torch.softmax(nn.functional.linear(hidden[step][0, place], weight, biases[0]), -1)
                np.testing.assert_allclose(candidates.law(0), trained.detach(), atol=2e-5)
                tree = tree.extend(ids[[start + 2 + step]], np.array([step]), np.zeros(1))


def test_steps_are_counted_by_hand() -> None:
    """One text of seven tokens, prompt of three, a vocabulary of four: who counts, who agrees."""
    ids = torch.tensor([[0, 1, 2, 3, 1, 9, 2]])
    batch = Batch(ids, torch.tensor([7]), torch.tensor([[1, 2, 3, 4, -1]]))
    drafted = torch.zeros(10, dtype=torch.bool)
    drafted[:4] = True
    law = TargetLaw(torch.eye(4) * 20)
    last = nn.functional.one_hot(torch.tensor([[0, 0, 3, 1, 0, 2, 0]]), 4).float()  # best token after each place
    counter = StepCounter(batch, Truth(last, last, last, law, drafted), torch.eye(4) * 20, 0.5)
    # step 0 predicts tokens 3 to 6 (3, 1, 9, 2), whose laws are at places 2 to 5 (3, 1, 0, 2)
    counter.add(nn.functional.one_hot(torch.tensor([[3, 1, 0, 0, 0]]), 4).float())
    # step 1 predicts tokens 4 to 6 (1, 9, 2), whose laws are at places 3 to 5 (1, 0, 2)
    counter.add(nn.functional.one_hot(torch.tensor([[1, 1, 2, 0, 0]]), 4).float())
    counts = counter.result()
    assert counts.rows.tolist() == [4, 3]
    assert counts.agreed.tolist() == [
        2,
        1,
    ]  # what follows start 3 is outside the vocabulary


# Texts


def test_batches_hold_every_text_once_and_keep_to_their_size() -> None:
    some = Texts(usable(texts(50), 64))
    batches = LengthBatches(some, 80, 0)
    one, same = list(batches), list(batches)
    batches.set_epoch(1)
    two = list(batches)
    assert one == same
    assert len(batches) == len(one) == len(two)
    for epoch in (one, two):
        assert sorted(index for batch in epoch for index in batch) == list(range(len(some)))
        for batch in epoch:
            assert len(batch) == 1 or len(batch) * max(len(some.texts[index].ids) for index in batch) <= 80
    assert one != two


class Watched(Texts):
    """Remembers what it was asked for."""

    def __init__(self, some: list[Text]) -> None:
        super().__init__(some)
        self.asked: list[int] = []

    def __getitem__(self, index: int) -> tuple[Text, torch.Tensor | None]:
        self.asked.append(index)
        return super().__getitem__(index)


class StopsAt(TrainerCallback):  # type: ignore[misc]  # transformers has no complete types
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == self.step


def test_each_pass_has_its_own_order_and_an_interruption_changes_nothing(tmp_path: Path) -> None:
    model, some = tiny_model("llama"), usable(texts(30), 64)
    batches = len(LengthBatches(Texts(some), 100, 0))
    effort = Effort(epochs=2, batch_tokens=100, learning_rate=1e-3, seed=0, save_every=1)

    def asked(folder: str, stop: int | None = None) -> list[int]:
        watched = Watched(some)
        stops = [StopsAt(stop)] if stop is not None else []
        fit(
            TRAININGS["medusa"],
            model,
            torch.arange(VOCAB),
            watched,
            Texts([]),
            tmp_path / folder,
            effort,
            resume=True,
            callbacks=stops,
        )
        return watched.asked

    whole = asked("whole")
    one, two = whole[: len(some)], whole[len(some) :]
    assert sorted(one) == sorted(two) == list(range(len(some)))
    assert one != two
    assert asked("parts", stop=batches + 2) + asked("parts") == whole
    stopped = asked("broken", stop=batches + 2)
    for number, content in ((batches + 3, None), (batches + 4, '{"global')):  # in which writing broke off
        unfinished = tmp_path / "broken" / f"checkpoint-{number}"
        unfinished.mkdir()
        if content is not None:
            (unfinished / "trainer_state.json").write_text(content)
    latest = latest_checkpoint(tmp_path / "broken")
    assert latest is not None
    assert latest.name == f"checkpoint-{batches + 2}"
    assert stopped + asked("broken") == whole


def test_the_draft_vocabulary_is_what_answers_use_most() -> None:
    some = [Text([1, 1, 1, 7, 7, 5], 3, 0), Text([2, 7, 8], 1, 1)]
    assert draft_vocabulary(some, 10, 3).tolist() == [5, 7, 8]
    assert draft_vocabulary(some, 10, 5).tolist() == [0, 1, 5, 7, 8]  # the rest are the lowest


def test_an_interrupted_file_of_texts_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    append_texts(file, texts(3))
    with file.open("a") as out:
        out.write('{"ids":[1,2')
    assert read_texts(file) == texts(3)
    append_texts(file, texts(2))  # in the place of what was not finished
    assert read_texts(file) == [*texts(3), *texts(2)]
    file.write_text('{"ids":[1,2')
    append_texts(file, texts(1))
    assert read_texts(file) == texts(1)
    file.write_bytes(file.read_bytes().rstrip())  # what lacks its end alone is finished
    append_texts(file, texts(2))
    assert read_texts(file) == [*texts(1), *texts(2)]


@pytest.mark.parametrize(
    "damaged",
    [
        *('{"ids":[1,2', "[]", "3", "null", "[" * 100_000),
        *(f'{{"ids":{ids},"prompt":1,"index":1}}' for ids in ('"abc"', "[1,2.5]", "[]", "[1,-2]")),
    ],
)
def test_a_damaged_line_of_texts_is_left_out_alone(tmp_path: Path, damaged: str) -> None:
    file, some = tmp_path / "answers.jsonl", texts(3)
    append_texts(file, some[:1])
    with file.open("a") as out:
        out.write(damaged + "\n")
    append_texts(file, some[1:])
    assert read_texts(file) == some


class Ends:
    """All of a tokenizer that `continue_texts` asks for."""

    pad_token_id = None


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_continuations_are_those_of_each_prompt_alone(batch_size: int) -> None:
    model = tiny_model("llama")
    model.generation_config.eos_token_id = [5, 17, 40]
    prompts = [text.ids[: text.prompt] for text in texts(9)]
    found = dict(continue_texts(model, Ends(), prompts, max_new_tokens=25, batch_size=batch_size))
    assert sorted(found) == list(range(9))
    for index, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        alone = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=25, pad_token_id=0)
        assert found[index] == alone[0, len(prompt) :].tolist()
    assert len({len(new) for new in found.values()}) > 2


def test_stored_states_are_the_targets(tmp_path: Path) -> None:
    model, some = tiny_model("llama"), usable(texts(7), 64)
    states = TargetStates(model, (1, 3))
    store = StateStore(tmp_path / "states.bin", some, 3 * 48, {"name": "a"})
    store.fill(states, 50)
    again = StateStore(tmp_path / "states.bin", some, 3 * 48, {"name": "a"})
    assert again.done == len(some)
    for index, text in enumerate(some):
        features, last = states(torch.tensor([text.ids]))
        plain = torch.cat([features[0], last[0]], dim=-1).to(torch.bfloat16)
        torch.testing.assert_close(again[index], plain, rtol=2**-7, atol=1e-3)
    assert StateStore(tmp_path / "states.bin", some, 3 * 48, {"name": "b"}).done == 0
    assert StateStore(tmp_path / "states.bin", some[1:], 3 * 48, {"name": "a"}).done == 0


@pytest.mark.parametrize("content", ["", '{"key": {', '{"done": 3}', "[]", "[" * 100_000])
def test_states_whose_progress_is_not_told_whole_are_made_anew(tmp_path: Path, content: str) -> None:
    some, file = usable(texts(3), 64), tmp_path / "states.bin"
    StateStore(file, some, 3 * 48, {}).fill(TargetStates(tiny_model("llama"), (1, 3)), 50)
    (tmp_path / "states.json").write_text(content)
    assert StateStore(file, some, 3 * 48, {}).done == 0


def test_states_for_which_a_disk_has_no_room_are_refused_before_they_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written to a mapped file that a disk has no room for kills the process."""

    def full(_descriptor: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, f"no room for {size} bytes from {start} on")

    some, file = usable(texts(3), 64), tmp_path / "states.bin"
    StateStore(file, some, 3 * 48, {}).fill(TargetStates(tiny_model("llama"), (1, 3)), 50)
    file.unlink()
    tokens = sum(len(text.ids) for text in some)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full, raising=False)
        with pytest.raises(OSError, match=f"no room for {tokens * 3 * 48 * 2} bytes from 0 on: '.*states.bin'"):
            StateStore(file, some, 3 * 48, {})
    assert StateStore(file, some, 3 * 48, {}).done == 0  # and not as many as there were before


def test_a_file_system_that_reserves_no_room_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", cannot, raising=False)
    some = usable(texts(3), 64)
    store = StateStore(tmp_path / "states.bin", some, 3 * 48, {})
    store.fill(TargetStates(tiny_model("llama"), (1, 3)), 50)
    assert store.done == len(some)


def test_a_checkpoint_that_cannot_be_written_is_told_as_the_system_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(Trainer, "_save_checkpoint", full)
    effort = Effort(epochs=1, batch_tokens=100, learning_rate=1e-3, seed=0, save_every=1)
    with pytest.raises(OSError, match=r"a checkpoint in '.*' cannot be written: .*No space left"):
        fit(
            TRAININGS["medusa"],
            tiny_model("llama"),
            torch.arange(VOCAB),
            Texts(usable(texts(5), 64)),
            Texts([]),
            tmp_path,
            effort,
            resume=True,
        )


# Prompts


def test_prompts_are_read_from_lines_of_many_kinds(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text('{"prompt": "a", "answer": "b"}\n\n{"turns": ["c", "d"]}\n"e"\n', encoding="utf-8")
    assert [(one.prompt, one.answer) for one in read_examples(file)] == [("a", "b"), ("c", None), ("e", None)]
    plain = tmp_path / "some.txt"
    plain.write_text("one\ntwo\n")
    assert [one.prompt for one in read_examples(plain)] == ["one", "two"]


@pytest.mark.parametrize("ending", ["JSONL", "Jsonl"])
def test_lines_are_json_however_the_ending_is_written(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"some.{ending}"
    file.write_text('{"prompt": "a", "answer": "b"}\n"c"\n')
    assert [(one.prompt, one.answer) for one in read_examples(file)] == [("a", "b"), ("c", None)]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"prompt": 5}', "line 1 has no text"),
        ('{"turns": 5}', "line 1 has no text"),
        ('{"turns": {"a": 1}}', "line 1 has no text"),
        ('{"prompt": "\\ud800"}', "line 1 has no text"),
        ('{"prompt": "a", "answer": "\\ud800"}', "or an answer that is none"),
        ("{", "line 1: it is not JSON"),
        ('{"prompt": ' + "9" * 5000 + "}", "line 1: it is not JSON"),
        ("[" * 100_000, "line 1: it is nested too deeply"),
        ("", "holds no prompt"),
    ],
)
def test_bad_prompt_files_are_refused_in_words(tmp_path: Path, content: str, sentence: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(content)
    with pytest.raises(ValueError, match=sentence):
        read_examples(file)


def test_the_library_gives_code_to_complete() -> None:
    examples = library_examples()
    assert len(examples) > 300
    assert all(example.prompt.startswith("Complete the code I provided.\n\ndef ") for example in examples)
    assert examples == library_examples()


def test_prompts_that_say_nothing_or_come_twice_are_left_out() -> None:
    assert [one.prompt for one in written_examples(["What is rain?", "", "Hm", " What is rain? "])] == ["What is rain?"]
    assert openings(5, 1) == openings(5, 1)


# Whole trainings


@pytest.mark.parametrize("kind", TRAININGS)
def test_a_loss_falls_and_gradients_reach_every_weight(kind: str) -> None:
    training = TRAININGS[kind]
    model = tiny_model("llama").requires_grad_(False)
    some = usable(texts(6), 64)
    tokens = torch.arange(0, 60)
    fitted = Fitted(training, training.make(model, tokens).float(), model, tokens)
    batch = collate([(text, None) for text in some])
    optimizer = torch.optim.AdamW(fitted.head.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        loss = fitted(**batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in fitted.head.parameters())
    assert not any(weight.requires_grad for weight in model.parameters())


class Heard(TrainerCallback):  # type: ignore[misc]  # transformers has no complete types
    """Losses on held-out texts, as a trainer reports them, and on how many GPUs it trains."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.gpus: set[int] = set()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.gpus.add(args.n_gpu)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.losses += [value for name, value in (logs or {}).items() if name == "eval_loss"]


def fitted_head(kind: str, model: Any, folder: Path) -> tuple[nn.Module, Heard]:
    """A head after some steps, and what was heard of them."""
    some, heard = usable(texts(12), 64), Heard()
    effort = Effort(epochs=6, batch_tokens=1000, learning_rate=3e-3, seed=0, save_every=1)
    parts = Texts(some[:10]), Texts(some[10:])
    head = fit(TRAININGS[kind], model, torch.arange(VOCAB), *parts, folder, effort, callbacks=[heard])
    return head, heard


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", TRAININGS)
def test_a_head_learns_from_a_target_in_sixteen_bits(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    head, heard = fitted_head(kind, tiny_model("llama").to(dtype), tmp_path)
    assert {parameter.dtype for parameter in head.parameters()} == {torch.float32}
    assert heard.losses[-1] < heard.losses[0]


def test_one_gpu_trains_where_there_are_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would train on all of them in threads of one process, and the target is on one."""

    class OnSeveral(nn.DataParallel[Any]):
        def __init__(self, *_: Any, **__: Any) -> None:
            raise AssertionError("the head is copied to several GPUs")

    def as_on_gpus(**options: Any) -> TrainingArguments:
        return TrainingArguments(**{**options, "use_cpu": False})

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("talon_drafters.training.fit.TrainingArguments", as_on_gpus)
    monkeypatch.setattr(nn, "DataParallel", OnSeveral)
    assert as_on_gpus(output_dir=str(tmp_path)).n_gpu == 2
    _, heard = fitted_head("medusa", tiny_model("llama"), tmp_path)
    assert heard.gpus == {1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gemma3", "olmo2", "nemotron"])
def test_a_head_begins_with_the_last_norm_of_its_target(architecture: str, dtype: torch.dtype) -> None:
    model = tiny_model(architecture).to(dtype)
    norm = model.get_decoder().norm
    torch.manual_seed(3)
    norm.weight.data.normal_(0.5, 2.0)
    head = TRAININGS["eagle3"].make(model, torch.arange(VOCAB)).float()
    x = torch.randn(7, 48)
    x -= x.mean(-1, keepdim=True)  # so that norms which take the mean away say the same
    torch.testing.assert_close(head.norm(x), norm.float()(x), rtol=1e-4, atol=1e-4)


def counting_model() -> Any:
    """A target that says after token `t` the token `22 t mod 97`, and so in circles of four."""
    model = tiny_model("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        table = nn.functional.normalize(model.get_input_embeddings().weight, dim=-1)
        model.get_input_embeddings().weight.copy_(table)
        model.lm_head.weight[22 * torch.arange(VOCAB) % VOCAB] = 2 * table
    return model


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> TrainingJob:
    """Texts by a target that is easy to foresee."""
    out = tmp_path_factory.mktemp("job")
    model = counting_model()
    drawn = np.random.default_rng(0).integers(1, 6, (40, 6, 2)).tolist()
    ids = torch.tensor([[22**turn % VOCAB * first % VOCAB for first, turn in prompt] for prompt in drawn])
    whole = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=30, pad_token_id=0)
    append_texts(out / "answers.jsonl", [Text(text, 6, index) for index, text in enumerate(whole.tolist())])
    (out / "prompts.jsonl").write_text('{"prompt": "x"}\n' * 40)
    return TrainingJob(
        "counting", out, batch_tokens=360, learning_rate=2e-2, held_out=0.1, save_every=5, keep_states=True
    )


def test_states_are_kept_that_the_recipe_reads_and_shared_by_recipes_that_read_the_same(
    job: TrainingJob, tmp_path: Path
) -> None:
    from talon_drafters.training.pipeline import _states

    model, some = tiny_model("llama"), usable(texts(3), 64)
    tokens, here = sum(len(text.ids) for text in some), attrs.evolve(job, out=tmp_path)
    with Progress(console=Console(file=io.StringIO())) as progress:
        stores = {kind: _states(TRAININGS[kind], model, some, here, progress) for kind in TRAINED}
        assert [bar.completed for bar in progress.tasks] == [3] * len(TRAINED)
    layers = default_states(model.config.num_hidden_layers)
    three = "-".join(map(str, layers))
    sizes = {file.name: file.stat().st_size for file in tmp_path.glob("*.bin")}
    assert sizes == {"states.bin": tokens * 48 * 2, f"states-{three}.bin": tokens * 4 * 48 * 2}
    _, last = TargetStates(model, ())(torch.tensor([some[0].ids]))
    for kind in (name for name, trained in TRAINED.items() if trained.last_state):
        torch.testing.assert_close(stores[kind][0], last[0].to(torch.bfloat16), rtol=2**-7, atol=1e-3)
    assert torch.equal(stores["eagle3"][0][:, -48:], stores["medusa"][0])


def copy_texts(job: TrainingJob, folder: Path) -> None:
    """Begin another training on a job's prompts and answers."""
    for name in ("answers.jsonl", "prompts.jsonl"):
        (folder / name).write_bytes((job.out / name).read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "drafter", "epochs"),
    [(kind, drafter, trained.epochs) for drafter, trained in TRAINED.items() for kind in trained.variants],
)
def test_a_tiny_training_improves_acceptance_and_its_drafter_is_lossless(
    job: TrainingJob, kind: str, drafter: str, epochs: int, tmp_path: Path
) -> None:
    from talon_drafters.training.pipeline import run_job

    training, model = TRAININGS[kind], counting_model()
    copy_texts(job, tmp_path)
    report = run_job(training, model, None, attrs.evolve(job, out=tmp_path, epochs=epochs))
    assert report["texts"] == 36
    card = (Path(report["path"]) / "README.md").read_text()
    assert f"talon train {training.options.name}:draft_vocab={VOCAB},steps=3" in card
    assert "| 36 | 1080 |" in card
    log = [json.loads(line) for line in (tmp_path / training.options.name / "log.jsonl").read_text().splitlines()]
    reports = [line for line in log if "eval_chain_tokens" in line]
    assert len(reports) >= 2
    assert reports[-1]["eval_chain_tokens"] > reports[0]["eval_chain_tokens"]

    prompt = np.array(read_texts(tmp_path / "answers.jsonl")[0].ids[:6])
    plain = decoder_for_model(model, None, Parts(policy="none")).generate(prompt, max_new_tokens=40)
    parts = Parts(f"{drafter}:path={report['path']}", "chain:length=3")
    trained = decoder_for_model(model, None, parts).generate(prompt, max_new_tokens=40)
    assert trained.token_ids == plain.token_ids
    assert trained.stats.mean_accepted_tokens > 1.5


@pytest.mark.slow
def test_two_processes_train_one_head(job: TrainingJob, tmp_path: Path, forked_python: str) -> None:
    model, out = counting_model(), tmp_path / "work"
    out.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(tmp_path / "model")
    words = Tokenizer(models.WordLevel({f"t{number}": number for number in range(VOCAB)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "model")
    copy_texts(job, out)
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    train = ["-m", "talon_core", "train", f"medusa:draft_vocab={VOCAB},steps=2"]
    where = [f"--model={tmp_path / 'model'}", f"--out={out}"]
    options = ["--epochs=20", "--batch-tokens=180", "--learning-rate=0.02", "--save-every=10"]
    done = subprocess.run(
        [forked_python, *launch, *train, *where, *options],
        env={**os.environ, "PYTHON_EXEC": forked_python},  # what torchrun starts its processes with
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    log = [json.loads(line) for line in (out / "medusa" / "log.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in log if "eval_chain_tokens" in line]
    assert steps == sorted(set(steps)), "each is reported once"
    # 39 texts of 36 tokens, five a batch, every second one for each of the two, twenty times
    assert log[-1]["step"] == 8 // 2 * 20
    parts = Parts(f"medusa:path={out / 'medusa' / 'drafter'}", "chain:length=2")
    prompt = np.array(read_texts(out / "answers.jsonl")[0].ids[:6])
    trained = decoder_for_model(model, None, parts).generate(prompt, max_new_tokens=40)
    assert trained.stats.mean_accepted_tokens > 1.5


def test_each_process_gets_other_batches_and_as_many() -> None:
    some = Texts(texts(40))
    shares = [list(LengthBatches(some, 60, 0, (rank, 3))) for rank in range(3)]
    whole = list(LengthBatches(some, 60, 0))
    assert {len(share) for share in shares} == {len(whole) // 3}
    given = [tuple(batch) for share in shares for batch in share]
    assert len(set(given)) == len(given)
    assert set(given) <= {tuple(batch) for batch in whole}
    with pytest.raises(ValueError, match="2 texts do not make a batch for each of 3 processes; lower batch_tokens"):
        LengthBatches(Texts(texts(2)), 4096, 0, (0, 3))


def test_an_exported_head_is_the_head_that_was_trained(tmp_path: Path) -> None:
    training, model = TRAININGS["eagle3"], tiny_model("llama")
    tokens = torch.arange(20, 80)
    head = training.make(model, tokens)
    training.export(head, tokens, {"talon": {}}, tmp_path)
    read = Eagle3Files.of(read_checkpoint(tmp_path)).head(48, VOCAB, torch.zeros(1))
    assert read.target_ids is not None
    assert read.target_ids.tolist() == tokens.tolist()
    for name, tensor in head.state_dict().items():
        assert torch.equal(read.state_dict()[name], tensor.to(torch.bfloat16)), name


# The command


def test_bad_input_is_refused_in_words(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cases = {
        ("eagle4",): "no recipe 'eagle4'; did you mean 'eagle3'?",
        ("eagle3",): "there is nothing to train on: give --prompts FILE, --self-written N or --library",
        ("eagle3", "--prompts", "nowhere.jsonl"): "--prompts is 'nowhere.jsonl'; it must be a file",
        ("eagle3", "--library", "--epochs", "0"): "--epochs",
        ("eagle3:steps=0", "--library"): "'steps' must be >= 1: 0",
        ("eagle3", "--library", "--dtype", "int8"): "--dtype is 'int8'; it must be one of auto, float32, bfloat16",
        ("eagle3", "--library", "--start", "nowhere"): "--start is 'nowhere'",
        ("eagle3", "--library", "--out", __file__): f"--out is '{__file__}', which is a file; it must be a folder",
    }
    for arguments, sentence in cases.items():
        assert main(["train", "--out", str(tmp_path / "out"), *arguments]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert sentence in err
        assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_another_job_is_not_mixed_in(job: TrainingJob, tmp_path: Path) -> None:
    from talon_drafters.training.pipeline import run_job

    copy_texts(job, tmp_path)
    model = tiny_model("llama")
    short = attrs.evolve(job, out=tmp_path, epochs=1, keep_states=False)
    first = run_job(TRAININGS["medusa"], model, None, short)
    again = run_job(TRAININGS["medusa"], model, None, short)
    assert again == first
    assert "are all accepted" in (tmp_path / "medusa" / "drafter" / "README.md").read_text()
    with pytest.raises(ValueError, match=r"belongs to a training with another job \(epochs\)"):
        run_job(TRAININGS["medusa"], model, None, attrs.evolve(short, epochs=2))
    for other, changed in (
        (attrs.evolve(short, self_written=9), r"another texts \(self_written\)"),
        (attrs.evolve(short, prompts=(tmp_path / "answers.jsonl",)), r"another texts \(prompts\)"),
    ):
        with pytest.raises(ValueError, match=changed):
            run_job(TRAININGS["eagle3"], model, None, other)
    with pytest.raises(ValueError, match=r"another target \(embeddings\)"):
        run_job(TRAININGS["eagle3"], tiny_model("gemma3"), None, short)


def test_a_second_training_in_a_folder_is_refused_while_another_one_writes_there(
    job: TrainingJob, tmp_path: Path
) -> None:
    from talon_core.basics.paths import LOCK
    from talon_drafters.training.pipeline import run_job

    copy_texts(job, tmp_path)
    model = tiny_model("llama")
    short = attrs.evolve(job, out=tmp_path, epochs=1, keep_states=False)
    refused = f"another training is writing into '{tmp_path}'; wait for it, or give another folder"
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with alone(tmp_path / LOCK, ""):
        for kind in ("medusa", "eagle3"):  # they share texts and states
            with pytest.raises(ValueError, match=f"^{re.escape(refused)}$"):
                run_job(TRAININGS[kind], model, None, short)
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.name != LOCK} == before
    run_job(TRAININGS["medusa"], model, None, short)  # a lock that nobody holds is in nobody's way


def test_weights_to_start_from_must_be_of_the_same_shape(job: TrainingJob, tmp_path: Path) -> None:
    from talon_drafters.training.pipeline import run_job

    copy_texts(job, tmp_path)
    model = tiny_model("llama")
    short = attrs.evolve(job, out=tmp_path, epochs=1, keep_states=False)
    run_job(TRAININGS["medusa"], model, None, short)
    start = attrs.evolve(short, out=tmp_path / "next", start=tmp_path / "medusa")
    start.out.mkdir()
    copy_texts(job, start.out)
    with pytest.raises(ValueError, match=r"has a draft vocabulary of 97; give draft_vocab=97"):
        run_job(MedusaTraining(MedusaRecipe(draft_vocab=40, steps=3)), model, None, start)
    with pytest.raises(
        ValueError, match=r"have blocks.0.0.linear.bias of shape \(48,\); this recipe makes it of shape none, so start"
    ):
        run_job(TRAININGS["eagle3"], model, None, start)
    with pytest.raises(ValueError, match=r"have weight of shape \(4, 4\); this recipe makes it of shape \(4, 6\)"):
        _check_start(nn.Linear(6, 4, bias=False), {"weight": torch.zeros(4, 4)})


DAMAGED = (b"", b"[]", b"3\n", b'{"recipe": 3}\n', b"\xff\xfe", b"[" * 100_000)
"""Of a file of settings, or of prompts."""


@pytest.mark.parametrize(
    ("name", "damaged"),
    [
        *((name, damaged) for name in ("texts.json", "medusa/job.json") for damaged in DAMAGED),
        *(("prompts.jsonl", damaged) for damaged in DAMAGED[1:]),  # of no lines none is damaged
    ],
)
def test_a_damaged_file_of_an_earlier_training_is_named_and_stays(
    job: TrainingJob, tmp_path: Path, name: str, damaged: bytes
) -> None:
    from talon_drafters.training.pipeline import run_job

    copy_texts(job, tmp_path)
    (tmp_path / "medusa").mkdir()
    (tmp_path / name).write_bytes(damaged)
    with pytest.raises(ValueError, match=rf"'{tmp_path / name}' is not "):
        run_job(TRAININGS["medusa"], tiny_model("llama"), None, attrs.evolve(job, out=tmp_path, keep_states=False))
    assert (tmp_path / name).read_bytes() == damaged


@pytest.mark.parametrize(
    ("damaged", "sentence"),
    [
        (b"", "to start from, cannot be read: "),
        (save({"weight": torch.zeros(2)}), "has no target_ids; "),
        (save({"target_ids": torch.zeros(2)}), "has no target_ids; "),
        (save({"target_ids": torch.tensor([3, VOCAB])}), f"drafts tokens outside the vocabulary, 0 to {VOCAB - 1}; "),
    ],
)
def test_a_damaged_head_to_start_from_is_named(job: TrainingJob, tmp_path: Path, damaged: bytes, sentence: str) -> None:
    from talon_drafters.training.pipeline import run_job

    copy_texts(job, tmp_path)
    start = tmp_path / "start"
    start.mkdir()
    (start / "head.safetensors").write_bytes(damaged)
    here = attrs.evolve(job, out=tmp_path, keep_states=False, start=start)
    with pytest.raises(ValueError, match=f"'{start / 'head.safetensors'}',? {sentence}"):
        run_job(TRAININGS["medusa"], tiny_model("llama"), None, here)


# The optimizer


def test_the_optimizer_moves_each_parameter_once_and_goes_on_from_its_state() -> None:
    torch.manual_seed(5)
    head = torch.nn.ModuleDict({"fc": torch.nn.Linear(6, 4), "lm_head": torch.nn.Linear(4, 9, bias=False)})
    optimizer = optimizer_for(head, 1e-2)
    moved = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(moved) == sorted(id(parameter) for parameter in head.parameters())
    rates = {group["lr"] for group in optimizer.param_groups}
    assert rates == {1e-2, 5e-3}

    def steps(module: Any, of: torch.optim.Optimizer, count: int) -> list[torch.Tensor]:
        for step in range(count):
            read = torch.randn(3, 6, generator=torch.Generator().manual_seed(step))
            module["lm_head"](module["fc"](read)).square().sum().backward()
            of.step()
            of.zero_grad()
        return [parameter.detach().clone() for parameter in module.parameters()]

    steps(head, optimizer, 3)
    twin = copy.deepcopy(head)
    other = optimizer_for(twin, 1e-2)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for mine, theirs in zip(steps(head, optimizer, 2), steps(twin, other, 2), strict=True):
        assert torch.equal(mine, theirs)
    for group in other.param_groups:  # what a scheduler does
        group["lr"] = 0.0
    before = [parameter.detach().clone() for parameter in twin.parameters()]
    assert all(torch.equal(*pair) for pair in zip(before, steps(twin, other, 1), strict=True))


def test_a_text_to_summarize_is_made_of_long_answers_only() -> None:
    long, short = "word " * 90, "word " * 20
    examples = summary_examples([long + "1", short, long + "2", long + "3", short, long + "4", long + "5"], 5)
    assert len(examples) == 1
    assert examples[0].prompt == f"Summarize: {long}1 {long}2 {long}3"
    assert summary_examples([long] * 9, 2) == summary_examples([long] * 6, 5)


class Talkative:
    """A tokenizer of words, with a chat template."""

    chat_template = "there is one"

    def apply_chat_template(self, messages: Any, tokenize: bool) -> str:
        return f"user {messages[0]['content']}"

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in text.split()]}

    def decode(self, ids: list[int], **_: Any) -> str:
        return " and so on" * len(ids)


@pytest.mark.parametrize(("lengths", "kept", "cut", "short"), [([96] * 4, 0, 4, 0), ([2, 96, 3, 2], 2, 1, 1)])
def test_how_many_self_written_prompts_are_kept_is_said(
    lengths: list[int],
    kept: int,
    cut: int,
    short: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from talon_drafters.training import pipeline

    def written(*_: Any, **__: Any) -> Any:
        yield from ((place, [1] * length) for place, length in enumerate(lengths))

    monkeypatch.setattr(pipeline, "continue_texts", written)
    monkeypatch.setattr(pipeline, "openings", lambda count, seed: ["What "] * count)
    job = TrainingJob("x", tmp_path, self_written=4)
    console = Console(file=io.StringIO(), width=200)
    with Progress(console=console) as progress:
        if kept:
            assert len(pipeline._examples(None, Talkative(), job, progress)) == kept
        else:
            with pytest.raises(ValueError, match="none of the 4 prompts that the target has written can be used"):
                pipeline._examples(None, Talkative(), job, progress)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"{kept} of 4 self-written prompts are kept: {cut} were cut off at 96 tokens, {short} were too short" in said
