"""What a drafter of texts offers along the texts of a trace: it is asked once, and what it says is kept.

A drafter's answer depends on the text and on the path to the node alone, see `Drafter`: neither on the rounds in which
the text came nor on what was asked before. So what it says along a text once is what it would say to any policy.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import attrs
import numpy as np

from talon_core.basics.paths import UNFINISHED, cache_folder, remove_unfinished, write_whole_parts
from talon_core.drafter import DrafterSpec
from talon_core.engine.checked_drafter import checked_depth, checked_hash, opened
from talon_core.plugins.specs import spelled
from talon_core.trace.asking import whole_rows_of
from talon_core.trace.code import code_is_known, code_of, package_code
from talon_core.trace.columns import Rows, TextTrace, padding
from talon_core.trace.folder import Trace
from talon_core.trace.oracle import along_rows
from talon_core.trace.superset import Superset

ASKED = Superset(candidates=128, depth=64, nodes=64, least=1e-3)
"""What is asked at each position. It is the same for all traces and policies, so that what is kept serves all of them.
Where a text repeats itself, trees are as deep as their budget."""

FORGOTTEN = 3600.0
"""Seconds after which nobody goes on with a file that is not whole."""


class Answers:
    """What a drafter offers along the texts of a trace, in the user's cache; a file there may be deleted at any time.

    Args:
        spec: of a drafter that `reads_texts`.
        trace: of the texts.

    Attributes:
        key: tells what is kept from what would be said by another drafter, with other files or other code, and of
            another trace. Where the code cannot be told, as of a class in a notebook, nothing is kept.

    Raises:
        ValueError: if the drafter's files are not there.
        PluginError: if it breaks its contract; the message names it.
    """

    def __init__(self, spec: DrafterSpec, trace: Trace) -> None:
        self.spec, self.trace = spec, trace
        sizes = ASKED.candidates, ASKED.depth, ASKED.nodes, ASKED.least
        code = f"{package_code(Answers)} {code_of(spec)}"  # the former asks, and writes the files
        self.key = _hashed(f"{trace.fingerprint} {sizes} {code} {checked_hash(spec)}")
        self._keeps = code_is_known(spec)

    @property
    def folder(self) -> Path:
        """Where the files are: one for each trace and each drafter's options. A file tells the rest of `key` itself."""
        return cache_folder() / "answers" / _hashed(f"{self.trace.fingerprint} {self.spec.name} {spelled(self.spec)}")

    @cached_property
    def max_depth(self) -> int | None:
        """The deepest node that the drafter drafts; None where it knows no limit."""
        return checked_depth(self.spec, opened(self.spec, self.trace.target))

    def of(self, text: TextTrace) -> TextTrace | None:
        """A text with the drafter's rows; None where it knows more candidates of a node than are asked for.

        Args:
            text: of the trace.

        Raises:
            PluginError: if the drafter breaks its contract; the message names it.
        """
        file = self.folder / self.trace.file(text.set, text.prompt).name
        found = self._kept(file, text) if self._keeps else None
        if found is None:
            rows = whole_rows_of(self.spec, text, self.trace, ASKED)
            if rows is None:
                return None
            along = along_rows(rows, text.ids[text.prompt_tokens :].tolist())
            found = attrs.evolve(text, rows=_narrowed(rows), along=along, law=None)
            if self._keeps:
                self._keep(file, found)
        return found

    def _kept(self, file: Path, text: TextTrace) -> TextTrace | None:
        """What is in a file; None where it is none, damaged, or of a text that was another one."""
        try:
            found = TextTrace.read(file)
            if found.rows is not None:
                found.rows.check(np.arange(len(found.rows.above)), found.rows.width, self.trace["target"]["vocab_size"])
        except (OSError, ValueError):
            return None
        same = found.of == self.key and found.rows is not None and np.array_equal(found.ids, text.ids)
        return attrs.evolve(text, rows=found.rows, along=found.along, law=None) if same else None

    def _keep(self, file: Path, text: TextTrace) -> None:
        with suppress(OSError):  # then it is asked again
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole_parts(file, text.parts(self.key), UNFINISHED)
            remove_unfinished(file.parent, FORGOTTEN)


def _hashed(told: str) -> str:
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _narrowed(rows: Rows) -> Rows:
    """The same without the columns that no row needs."""
    width = max(1, int((rows.tokens >= 0).sum(axis=1).max(initial=0)))
    return attrs.evolve(rows, tokens=rows.tokens[:, :width], logp=rows.logp[:, :width], sums=None)


def of_one_width(texts: Sequence[TextTrace]) -> list[TextTrace]:
    """Texts with rows, of as many candidates each as the widest of them have."""
    width = max((text.recorded.width for text in texts), default=0)
    return [attrs.evolve(text, rows=_widened(text.recorded, width)) for text in texts]


def _widened(rows: Rows, width: int) -> Rows:
    more = (0, 0), (0, width - rows.width)
    tokens = np.pad(rows.tokens, more, constant_values=padding(rows.tokens.dtype))
    return attrs.evolve(rows, tokens=tokens, logp=np.pad(rows.logp, more, constant_values=-np.inf), sums=None)
