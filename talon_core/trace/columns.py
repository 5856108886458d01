"""What was recorded of one text, as columns: a safetensors file each."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from talon_core.engine.checked_candidates import rises
from talon_core.trace.along import Along
from talon_core.trace.kept_laws import KeptLaws
from talon_core.trace.stored import Stored, file_parts, mapped
from talon_core.trace.sums import CHANGED, row_sums, sum_of
from talon_core.trace.text_laws import TextLaws
from talon_core.tree_arrays import FloatArray, IntArray

NO_ROW = -1
"""In the place of a row that was not recorded."""

NARROW = np.iinfo(np.uint16).max
"""Vocabularies up to this size are kept in two bytes a token; the number itself stands for padding then."""


@attrs.frozen(eq=False)
class Rows:
    """What a drafter offered at the nodes of a superset tree at every position; a row for each node.

    Rows stand position by position, layer by layer, and those of a layer in the order of the rows above them. A node is
    known by the row of its parent and its token. Columns are as small as they can be without loss; `offered` gives rows
    as they were.

    Attributes:
        starts: by position its first row, and behind them all the number of rows, shape `(positions + 1,)`, integers.
        above: the row of each node's parent, `NO_ROW` for a root, shape `(rows,)`, integers.
        nodes: each node's token, shape `(rows,)`, integers.
        tokens: token ids, best first, shape `(rows, width)`, int32 with -1 for padding, or uint16 with `NARROW`.
        logp: natural log-probabilities given the path to the node, same shape, float32 or float64.
        whole: whether a row holds all that the drafter knows there, shape `(rows,)`, bool.
        passes: draft passes of each layer at each position, shape `(positions, layers)`, integers.
        sums: a checksum of the tokens and log-probabilities of each row, shape `(rows,)`, int32; None where none are
            known, as of what was recorded by an earlier version.
    """

    starts: NDArray[Any]
    above: NDArray[Any]
    nodes: NDArray[Any]
    tokens: NDArray[Any]
    logp: NDArray[Any]
    whole: NDArray[np.bool_]
    passes: NDArray[Any]
    sums: NDArray[Any] | None = None

    @property
    def width(self) -> int:
        """Candidates a row."""
        return int(self.tokens.shape[1])

    def root(self, position: int) -> int:
        """The row of the root at a position; `NO_ROW` where nothing was drafted."""
        first, end = self.starts[position : position + 2].tolist()
        return int(first) if end > first else NO_ROW

    def find(self, position: int, above: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """The rows of some nodes of a position that are no roots; `NO_ROW` for those that have none.

        Args:
            position: it.
            above: the rows of their parents; below a node without a row there is none.
            tokens: their own, as many.
        """
        begin, end = self.starts[position : position + 2].tolist()
        wanted = np.array([*above, *[row + 1 for row in above]], self.above.dtype)
        places = self.above[begin + 1 : end].searchsorted(wanted).tolist()
        firsts, ends = places[: len(above)], places[len(above) :]
        least = min(firsts)
        held = self.nodes[begin + 1 + least : begin + 1 + max(ends)].tolist()
        found = []
        for token, first, behind in zip(tokens, firsts, ends, strict=True):
            own = held[first - least : behind - least]
            found.append(begin + 1 + first + own.index(token) if token in own else NO_ROW)
        return found

    def offered(self, rows: Sequence[int] | IntArray, width: int) -> tuple[IntArray, FloatArray]:
        """The best candidates of some rows, as they stand in the file; `check` looks at them.

        Returns:
            Tokens, -1 for padding, and their log-probabilities, shape `(rows, width)`, int64 and float64.
        """
        of = np.asarray(rows, dtype=np.int64)
        tokens = tokens_of(self.tokens.take(of, axis=0)[:, :width])
        logp: FloatArray = self.logp.take(of, axis=0)[:, :width].astype(np.float64)
        return tokens, logp

    def check(self, rows: Sequence[int] | IntArray, width: int, vocab_size: int) -> None:
        """Refuse rows that no drafter's answer can have been, see `checked_candidates`, or that were not recorded so.

        Args:
            rows: that are looked at.
            width: how many of their candidates, the best ones.
            vocab_size: the target's.

        Raises:
            ValueError: if there is one.
        """
        of = np.asarray(rows, dtype=np.int64)
        tokens, logp = (each.take(of, axis=0)[:, :width] for each in (self.tokens, self.logp))
        check_offered(tokens, logp, vocab_size)
        self.check_sums(of)

    def check_sums(self, rows: IntArray) -> None:
        """Refuse rows that are not what was recorded, as far as their checksums are known.

        Raises:
            ValueError: if there is one.
        """
        if self.sums is None:
            return
        tokens, logp = (each.take(rows, axis=0) for each in (self.tokens, self.logp))
        if (row_sums(tokens, logp) != self.sums.take(rows)).any():
            raise ValueError(f"a row of the trace {CHANGED}")


def padding(kind: "np.dtype[Any]") -> int:
    """What stands for padding among tokens of a type."""
    return NARROW if kind == np.uint16 else -1


def tokens_of(found: NDArray[Any]) -> IntArray:
    """Tokens as they stand in a file, as int64 with -1 for padding."""
    tokens: IntArray = found.astype(np.int64)
    if found.dtype == np.uint16:
        tokens[found == NARROW] = -1
    return tokens


def check_offered(tokens: NDArray[Any], logp: NDArray[Any], vocab_size: int) -> None:
    """Refuse candidates as they stand in a file, if no drafter's answer can have been so; see `Rows.check`.

    Args:
        tokens: shape `(rows, width)`.
        logp: likewise.
        vocab_size: the target's.

    Raises:
        ValueError: if there is one.
    """
    nothing = padding(tokens.dtype)
    padded = tokens == nothing
    if not ((logp <= 0) & ((logp == -np.inf) == padded)).all():
        raise ValueError("a row of the trace holds a log-probability that is none; its file was changed")
    real = tokens[~padded] if padded.any() else tokens
    if real.min(initial=0) < 0 or real.max(initial=0) >= vocab_size:
        raise ValueError(
            f"a row of the trace holds tokens outside the vocabulary, 0 to {vocab_size - 1}; its file was changed"
        )
    ranked = np.sort(tokens, axis=1)
    twice = ranked[:, 1:][ranked[:, 1:] == ranked[:, :-1]]
    rising = (logp[:, 1:] > logp[:, :-1]).any() and rises(logp.astype(np.float64)).any()
    if rising or (twice != nothing).any():
        raise ValueError("a row of the trace is not sorted, or holds a token twice; its file was changed")


@attrs.frozen(eq=False)
class TextTrace:
    """One text and what was recorded along it.

    Attributes:
        set: the prompt set's name.
        prompt: the prompt's index in its set.
        ids: the prompt and the target's own continuation, shape `(tokens,)`, int64.
        prompt_tokens: how many of them are the prompt.
        finish_reason: what ended the text.
        of: the fingerprint of its trace, where it was read from a file.
        seconds: what recording it took.
        rows: what the drafter offered; None for a drafter of texts, which can be asked again.
        along: how the offers lie along the text; None without rows.
        law: whole laws at the rows' nodes; None where none were recorded.
    """

    set: str
    prompt: int
    ids: IntArray
    prompt_tokens: int
    finish_reason: str
    seconds: float
    of: str = ""
    rows: Rows | None = None
    along: Along | None = None
    law: TextLaws | None = None

    @property
    def recorded(self) -> Rows:
        """Its rows, where there are such."""
        assert self.rows is not None
        return self.rows

    @property
    def positions(self) -> int:
        """Places at which a round may begin: one for each new token."""
        return len(self.ids) - self.prompt_tokens

    def parts(self, of: str, laws: KeptLaws | None = None) -> Iterator[bytes]:
        """The text as a safetensors file, part by part.

        Args:
            of: the fingerprint of its trace.
            laws: whole laws at all rows; None where none are kept.
        """
        told: dict[str, Any] = {"set": self.set, "prompt": self.prompt, "of": of}
        told |= {"finish_reason": self.finish_reason, "seconds": self.seconds}
        arrays: dict[str, NDArray[Any] | Stored] = {
            "ids": self.ids.astype(np.int32),
            "prompt_tokens": np.array([self.prompt_tokens], dtype=np.int64),
        }
        if self.rows is not None and self.along is not None:
            arrays |= _packed(self.rows)
            offers = attrs.asdict(self.along, recurse=False)
            arrays |= {name: column.astype(np.int32) for name, column in offers.items() if column is not None}
        if laws is not None:
            arrays |= laws.columns()
            told["drawn_at"] = laws.layout.temperatures
        told[SUM] = sum_of(told, arrays, _small(arrays))
        return file_parts(arrays, {"text": json.dumps(told)})

    @classmethod
    def read(cls, file: Path) -> "TextTrace":
        """Read a file; what was offered, and whole laws, stay where they are until somebody asks for them.

        What is small is compared with its checksum; `Rows.check` and `law` compare rows that are looked at with theirs.

        Raises:
            ValueError: if it is none, or not whole.
        """
        try:
            with safe_open(str(file), framework="np") as opened:  # it refuses what is no such file, or not whole
                told = json.loads((opened.metadata() or {})["text"])
            columns = mapped(file)
            recorded = "starts" in columns
            found = cls(
                set=str(told["set"]),
                prompt=int(told["prompt"]),
                ids=columns["ids"].astype(np.int64),
                prompt_tokens=int(columns["prompt_tokens"][0]),
                finish_reason=str(told["finish_reason"]),
                seconds=float(told["seconds"]),
                of=str(told.get("of")),
                rows=Rows(**{name: columns[name] for name in COLUMNS}, sums=columns.get("sums")) if recorded else None,
                along=Along(columns["ranks"], columns["reach"], columns.get("shallow")) if recorded else None,
                law=TextLaws.of(columns, told, file),
            )
            _check(found)
            known = told.pop(SUM, None)  # a text that an earlier version has recorded has none
            if known is not None and known != sum_of(told, columns, _small(columns)):
                raise ValueError("its columns are not what was recorded, they were changed")
        except (SafetensorError, LookupError, ValueError, TypeError, ArithmeticError) as error:
            why = str(error) or type(error).__name__
            raise ValueError(
                f"'{file}' is no text of a trace, or not a whole one: {why}; delete it and record what is missing"
            ) from error
        return found


COLUMNS = ("starts", "above", "nodes", "tokens", "logp", "whole", "passes")

SUM = "sum"
"""How the checksum of a text's small columns is called, among the rest that is told of it."""


def _small(columns: Mapping[str, NDArray[Any] | Stored]) -> dict[str, NDArray[Any]]:
    """The columns that are read in full when a text is opened."""
    large = "tokens", "logp"
    return {
        name: column
        for name, column in columns.items()
        if name not in large and not name.startswith("law.") and isinstance(column, np.ndarray)
    }


def _packed(rows: Rows) -> dict[str, NDArray[Any]]:
    """The columns in as few bytes as hold them without loss."""
    small = int(rows.tokens.max(initial=0)) < NARROW
    single = rows.logp.astype(np.float32)
    exact = np.array_equal(single.astype(np.float64), rows.logp)
    whole = {name: getattr(rows, name).astype(np.int32) for name in ("starts", "above", "nodes", "passes")}
    tokens = np.where(rows.tokens < 0, NARROW, rows.tokens).astype(np.uint16) if small else rows.tokens.astype(np.int32)
    logp = single if exact else rows.logp
    return {**whole, "tokens": tokens, "logp": logp, "whole": rows.whole, "sums": row_sums(tokens, logp)}


def _check(text: TextTrace) -> None:
    """Refuse columns that do not fit each other.

    Raises:
        ValueError: if they do not.
    """
    if not 0 < text.prompt_tokens < len(text.ids):
        raise ValueError(f"it has a prompt of {text.prompt_tokens} tokens in a text of {len(text.ids)}")
    rows = text.rows
    if rows is None:
        return
    count, starts = len(rows.above), rows.starts
    shapes = {rows.nodes.shape, rows.whole.shape, rows.above.shape, rows.tokens.shape[:1], rows.logp.shape[:1]}
    shapes |= set() if rows.sums is None else {rows.sums.shape}
    if shapes != {(count,)} or rows.tokens.shape != rows.logp.shape or rows.tokens.ndim != 2:
        raise ValueError("its columns differ in length")
    if not rows.width or rows.passes.ndim != 2 or len(rows.passes) != text.positions:
        raise ValueError("its columns differ in length")
    if rows.passes.min(initial=0) < 0:
        raise ValueError(f"it has {rows.passes.min()} draft passes of a layer")
    if text.along is None or text.along.reach.shape != (text.positions,):
        raise ValueError(f"its ranks are not those of {text.positions} positions")
    ranks, reach = text.along.ranks, text.along.reach
    if {ranks.dtype.kind, reach.dtype.kind, rows.above.dtype.kind} != {"i"}:
        raise ValueError("its ranks or its rows are no whole numbers")
    if reach.min() < 0 or ranks.shape != (reach.sum(),) or ranks.min(initial=0) < 0:
        raise ValueError("its ranks and their counts differ")
    if (reach >= np.arange(len(reach), 0, -1)).any():
        raise ValueError("its ranks lead beyond its end")
    shallow = text.along.shallow
    if shallow is not None:
        if shallow.dtype.kind != "i" or shallow.shape != ranks.shape:
            raise ValueError(f"its 'shallow' is no whole number for each of its {len(ranks)} 'ranks'")
        (wrong,) = ((shallow < 0) | (shallow > ranks)).nonzero()
        if len(wrong):
            found = shallow[wrong[0]], ranks[wrong[0]]
            raise ValueError("its 'shallow' has the rank {}, which must be from 0 to {} as in 'ranks'".format(*found))
    if len(starts) != text.positions + 1 or starts[0] != 0 or starts[-1] != count or (np.diff(starts) < 0).any():
        raise ValueError(f"its rows are not those of {text.positions} positions")
    above, begins = rows.above, starts[:-1][np.diff(starts) > 0]
    if (above >= np.arange(count, dtype=above.dtype)).any():
        raise ValueError("a row stands before the one above it")
    (falls,) = (above[1:] < above[:-1]).nonzero()
    if (above[1 + falls] != NO_ROW).any():
        raise ValueError("rows do not stand in the order of those above them")
    if (above[begins] != NO_ROW).any() or np.count_nonzero(above == NO_ROW) != len(begins):
        raise ValueError("a position has several roots, or none")
