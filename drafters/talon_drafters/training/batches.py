"""Batches for training: texts of like length, in another order at every pass."""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from talon_drafters.training.answers import Text
from talon_drafters.training.store import StateStore


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
    """Batches of texts of like length and of a fixed number of tokens, in another order at each pass (`set_epoch`).

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
        yield from self._batches(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Which pass comes next, from 0 on; the same pass has the same order whenever it is asked for."""
        self._epoch = epoch

    def _batches(self, epoch: int) -> list[list[int]]:
        rng = np.random.default_rng(None if self._seed is None else [self._seed, 0])
        noise = rng.random(len(self._lengths)) * 8  # texts of equal length do not share a batch in the file's order
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
