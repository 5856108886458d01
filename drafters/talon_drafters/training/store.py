"""The target's states at every token of the texts, kept on disk, so that each is computed once."""

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from talon_core.basics import records
from talon_core.basics.paths import about, small_text, write_whole
from talon_drafters.training.answers import Text
from talon_drafters.training.target_states import TargetStates


class StateStore:
    """Features and last states of texts in one file, as bfloat16; `store[i]` is a text's, `(tokens, width)`.

    A file that was begun for the same texts is gone on with; one for other texts is made anew.

    Args:
        file: where they are kept; a small file beside it says how far it is.
        texts: the texts, whose tokens are rows of the file, one after another.
        width: of features and last state together.
        target: what tells the target from others; it goes through JSON.
    """

    def __init__(self, file: Path, texts: Sequence[Text], width: int, target: Mapping[str, Any]) -> None:
        lengths = [len(text.ids) for text in texts]
        self._texts = texts
        self._starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._progress = file.with_suffix(".json")
        total = int(self._starts[-1])
        tokens = sum(sum(text.ids) for text in texts)
        key = {"target": dict(target), "width": width, "texts": len(texts), "tokens": total, "sum": tokens}
        size = total * width * np.dtype(np.int16).itemsize
        whole = file.exists() and file.stat().st_size == size
        self.done = _done(self._progress, key) if whole else 0
        self._key = key
        if not self.done:
            self._progress.unlink(missing_ok=True)  # it is of what is given up now
        with about(file):
            _take(file, size, "r+b" if self.done else "wb")
        self._rows = np.memmap(file, np.int16, "r+", shape=(total, width))

    def fill(
        self, states: TargetStates, batch_tokens: int, advance: Callable[[int], None] = lambda texts: None
    ) -> None:
        """Run the texts that are missing; `advance` is told how many are new."""
        while self.done < len(self._texts):
            end = min(self.done + 512, len(self._texts))  # sorted by length among themselves
            order = sorted(range(self.done, end), key=lambda index: len(self._texts[index].ids))
            while order:
                count = max(1, batch_tokens // len(self._texts[order[-1]].ids))
                part, order = order[-count:], order[:-count]
                self._run(states, part)
            self._rows.flush()
            advance(end - self.done)
            self.done = end
            write_whole(self._progress, json.dumps({"key": self._key, "done": self.done}))

    def _run(self, states: TargetStates, part: Sequence[int]) -> None:
        longest = max(len(self._texts[index].ids) for index in part)
        ids = torch.zeros((len(part), longest), dtype=torch.int64)
        for row, index in enumerate(part):
            ids[row, : len(self._texts[index].ids)] = torch.as_tensor(self._texts[index].ids)
        found = torch.cat(states(ids), dim=-1).to(torch.bfloat16).cpu().view(torch.int16).numpy()
        for row, index in enumerate(part):
            start, end = self._starts[index], self._starts[index + 1]
            self._rows[start:end] = found[row, : end - start]

    def __getitem__(self, index: int) -> Tensor:
        """All states of a text, features first, shape `(tokens, width)`, bfloat16."""
        rows = np.array(self._rows[self._starts[index] : self._starts[index + 1]])
        return torch.from_numpy(rows).view(torch.bfloat16)


def _done(progress: Path, key: Mapping[str, Any]) -> int:
    """How many texts are there, by the small file; 0 where it is of others, or is not whole."""
    try:
        known = records.parsed(small_text(progress))
        return int(known["done"]) if known["key"] == key else 0
    except (OSError, ValueError, LookupError, TypeError, OverflowError):
        return 0


def _take(file: Path, size: int, mode: str) -> None:
    """Let a file have so many bytes, and room for them where the system can say so: a full disk kills whoever writes to
    a mapped file.

    Raises:
        OSError: if there is no room.
    """
    with file.open(mode) as out:
        try:
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(out.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # what file systems say that cannot
                raise
        out.truncate(size)
