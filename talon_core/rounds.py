"""What happened in a round, and what a whole generation amounts to."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from talon_core.basics import records
from talon_core.tree import IntArray, TokenTree
from talon_core.tree_arrays import ints

PARTS = ("draft", "policy", "verify", "accept", "commit")
"""What spans of a round are of: the drafter, the policy with the checks of its answers, the target's pass, the
acceptance rule, and the target's cache with the bookkeeping."""

BESIDE = ("prepare", "wait")
"""What spans are of that lie beside these, where drafting goes on while the target verifies: a call of the drafter for
what may come, and the time for which the round waited until that had ended, which is within a span of `PARTS`."""

WORKS: Mapping[str, Sequence[str]] = {
    "draft": ("guess", "reading", "layer", "inquiry", "answers", "commit"),
    "policy": ("begin", "width", "grow", "finish", "end", "copy"),
    "prepare": ("reading", "layer", "look", "commit"),
}
"""What spans of a part may be of, where the part does more than one thing.

Of the drafter: how likely its best guess is, which may be told before it drafts (`Drafter.likeliest`); what it reads
before it can draft, such as a prompt; a layer of the tree; what it asks the target beside
the tree (`Inquirer`), and that the answers are read; and its `commit`. Of the policy: its `width` and `grow` for a
layer, and its `finish`; where trees grow together, what is done before the first layer and behind the finish; and the
copies of it that decide what is prepared. Of what is prepared: as of the drafter, and a look at what else could be
asked, which found nothing."""

LAYERED = ("layer", "width", "grow")
"""Works that are of one layer, whose number their spans have."""


@attrs.frozen
class Span:
    """A stretch of time, in seconds by the engine's clock.

    What is prepared in a process beside is timed there. It lies as far between the moments at which the process was
    told to begin and had answered as it does by the clock there.

    Attributes:
        part: whose it is, one of `PARTS` or `BESIDE`.
        start: when it began.
        end: when it was over.
        work: what of the part it is, one of its `WORKS`; None where the part has none, and where one span is of all
            that it did in the round, as costs tell it.
        layer: of which layer, counted from 0, where the work is one of `LAYERED`: of the round's tree, and of what is
            prepared the drafter's calls in this round. Otherwise None.
    """

    part: str
    start: float
    end: float
    work: str | None = None
    layer: int | None = None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start

    def as_dict(self) -> dict[str, Any]:
        """The span as plain data, without what is None."""
        return {name: value for name, value in records.fields_as_plain(self).items() if value is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Span":
        """What `as_dict` gave.

        Raises:
            ValueError: if it is no span; the sentence names the field and the value.
        """
        found: Span = records.make(cls, data, SPAN_READERS)
        if found.end < found.start:
            raise ValueError(f"no Span: 'end' is {found.end}; it must be no less than 'start', {found.start}")
        works = WORKS.get(found.part, ())
        if found.work is not None and found.work not in works:
            must = f"one of {', '.join(works)}" if works else "left out"
            raise ValueError(f"no Span: 'work' is '{found.work}'; of the part '{found.part}' it must be {must}")
        if (found.layer is not None) != (found.work in LAYERED):
            raise ValueError(
                f"no Span: 'layer' is {found.layer} and 'work' is {found.work}; there must be a layer just where the "
                f"work is one of {', '.join(LAYERED)}"
            )
        return found


def seconds_together(spans: Iterable[Iterable[Span]]) -> float:
    """What spans of some sequences have taken.

    A span of the drafter may be of several of them, and counts once. What a policy takes for many sequences together is
    shared out among them in equal parts, each of which counts.

    Args:
        spans: of each sequence, of one round.
    """
    own, shared = 0.0, set[Span]()
    for each in spans:
        for span in each:
            if span.part == "policy":
                own += span.seconds
            else:
                shared.add(span)
    return own + sum(span.seconds for span in shared)


SPAN_READERS: Mapping[str, records.Reader] = {
    "part": records.one_of(*PARTS, *BESIDE),
    "start": records.amount,
    "end": records.amount,
    "work": records.maybe(records.words),
    "layer": records.maybe(records.whole),
}


@attrs.frozen(eq=False)
class Round:
    """One round of one sequence. The arrays are read only.

    Attributes:
        tree: the tree the target verified; the laws of its draws are forgotten (`TokenTree.without_laws`).
        path: its accepted nodes, root first, shape `(path,)`, int64.
        tokens: the tokens the round emitted, after cutting at a stop condition, shape `(new,)`, int64.
        drafted: the tree as it was drafted, where `tree` was selected from it by the policy or, among sequences that
            share a pass, by the engine; None where it is the same.
        draft_passes: forward passes of a draft model, shared by the sequences that were drafted together.
        spans: what took time, in the order in which it began. The drafter and the target serve all sequences of a round
            at once; the policy and the rule of another sequence are not among them.
        context: tokens of the text before the round.
        sequences: whose trees were in the same pass of the target, those for which something has failed after it, too.
        nodes: of all their trees together, with those that were added to them.
        inquired: nodes that the drafter has added to this tree to ask the target about (`Inquirer`); none is in `tree`.
        hit: whether what its tree was drafted from was prepared while the round before was verified; None where nothing
            was being prepared.
        laws_on_host: at how many nodes the rule has asked for the target's law or a token, one after another on the
            host; 0 where the target has chosen the path by itself.
        on_host: why the rule was asked on the host where the target can draw by itself, as a clause; None where the
            rule was not asked, or the target cannot.
    """

    tree: TokenTree
    path: IntArray
    tokens: IntArray
    drafted: TokenTree | None = None
    draft_passes: int = 0
    spans: tuple[Span, ...] = ()
    context: int = 1
    sequences: int = 1
    nodes: int = attrs.field(default=attrs.Factory(lambda self: len(self.tree), takes_self=True))
    inquired: int = 0
    hit: bool | None = None
    laws_on_host: int = 0
    on_host: str | None = None

    def _seconds(self, part: str) -> float:
        return sum((span.seconds for span in self.spans if span.part == part), 0.0)

    @property
    def rows(self) -> int:
        """Nodes that the target has run for this sequence: those of the tree, and what was added to it."""
        return len(self.tree) + self.inquired

    @property
    def drafted_nodes(self) -> int:
        """Nodes of the tree while it was drafted, the root included."""
        return len(self.tree if self.drafted is None else self.drafted)

    @property
    def draft_seconds(self) -> float:
        """Time in the drafter: in its layers, what it reads, asks and is answered, and its `commit`."""
        return self._seconds("draft")

    @property
    def layer_seconds(self) -> list[float]:
        """Time in each layer of the drafter, in their order; empty where none is told apart."""
        return [span.seconds for span in self.spans if span.part == "draft" and span.layer is not None]

    @property
    def policy_seconds(self) -> float:
        """Time in the policy and in the checks of its answers."""
        return self._seconds("policy")

    @property
    def verify_seconds(self) -> float:
        """Time in the target's forward pass; where it was run together with those of other rounds, in the mean."""
        return self._seconds("verify")

    @property
    def wait_seconds(self) -> float:
        """Time for which the round waited for what was being prepared to end; a part of `draft_seconds`."""
        return self._seconds("wait")

    @property
    def prepare_seconds(self) -> float:
        """Time in the drafter while the target verified the tree, beside the round's other parts."""
        return self._seconds("prepare")

    @property
    def accept_seconds(self) -> float:
        """Time in the acceptance rule."""
        return self._seconds("accept")

    @property
    def commit_seconds(self) -> float:
        """Time in the target's cache commit and the bookkeeping."""
        return self._seconds("commit")

    def copied(self) -> "Round":
        """The same round as an object of its own: whatever is done to it, this one stays as it is."""
        return Round(  # and no `attrs.evolve`, which takes several times as long
            self.tree.copied(),
            ints(self.path),
            ints(self.tokens),
            None if self.drafted is None else self.drafted.copied(),
            self.draft_passes,
            self.spans,
            self.context,
            self.sequences,
            self.nodes,
            self.inquired,
            self.hit,
            self.laws_on_host,
            self.on_host,
        )

    @property
    def accepted(self) -> int:
        """Drafted tokens that were accepted: nodes of the path without the root."""
        return len(self.path) - 1

    def _repr_html_(self) -> str:
        from talon_core.pictures.notebook import picture_of

        return picture_of(self).html

    def as_dict(self) -> dict[str, Any]:
        """The round as plain data, for JSON; `from_dict` reads it."""
        return records.fields_as_plain(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Round":
        """What `as_dict` gave, as it was.

        Raises:
            ValueError: if it is no round, or its path is none in its tree; the sentence names the field and the value.
        """
        found: Round = records.make(cls, data, ROUND_READERS)
        end = int(found.path[-1]) if len(found.path) else -1
        if end not in range(len(found.tree)) or found.tree.path(end).tolist() != found.path.tolist():
            raise ValueError(f"no Round: 'path' is {found.path.tolist()}; it must lead down from the root, node 0")
        return found


@attrs.frozen
class Stats:
    """Totals of one generation; the fields of `talon generate --json`. Times are in seconds."""

    new_tokens: int
    rounds: int
    target_passes: int
    draft_passes: int
    mean_accepted_tokens: float
    """New tokens per target pass, the bonus token included (MAT, tau)."""
    nodes_verified: int
    """Nodes that the target has run, what drafters have added to trees included (`Round.rows`)."""
    seconds: float
    """From the start of the prefill to the last token."""
    tokens_per_second: float
    prefill_seconds: float
    draft_seconds: float
    policy_seconds: float
    verify_seconds: float
    accept_seconds: float
    commit_seconds: float
    other_seconds: float
    """What is left of `seconds`: the loop itself, the stop conditions and whoever reads the stream."""
    hits: int = 0
    """Rounds that began with what was prepared while the round before was verified (`Round.hit`)."""
    misses: int = 0
    """Rounds for which something was being prepared, and that did not."""
    wait_seconds: float = 0.0
    """For which rounds waited until what was being prepared had ended; a part of `draft_seconds`."""
    prepare_seconds: float = 0.0
    """In the drafter while the target verified, beside the other parts."""

    @classmethod
    def of(cls, rounds: Sequence[Round], seconds: float, prefill_seconds: float) -> "Stats":
        """Add up `rounds`, which took `seconds` altogether, the prefill included."""
        new_tokens = sum(len(one.tokens) for one in rounds)
        parts = {
            part: sum((getattr(one, part) for one in rounds), 0.0)
            for part in ("draft_seconds", "policy_seconds", "verify_seconds", "accept_seconds", "commit_seconds")
        }
        beside: dict[str, float] = {}
        for part in ("wait_seconds", "prepare_seconds"):
            beside[part] = sum((getattr(one, part) for one in rounds), 0.0)
        return cls(
            new_tokens=new_tokens,
            rounds=len(rounds),
            target_passes=len(rounds),
            draft_passes=sum(one.draft_passes for one in rounds),
            mean_accepted_tokens=new_tokens / len(rounds) if rounds else 0.0,
            nodes_verified=sum(one.rows for one in rounds),
            seconds=seconds,
            tokens_per_second=new_tokens / seconds if seconds else 0.0,
            prefill_seconds=prefill_seconds,
            other_seconds=max(0.0, seconds - prefill_seconds - sum(parts.values())),
            hits=sum(one.hit is True for one in rounds),
            misses=sum(one.hit is False for one in rounds),
            **parts,
            **beside,
        )

    def of_call(self, seconds: float) -> "Stats":
        """The same where the whole call took `seconds`: preparing the request and looking at the model count too."""
        return attrs.evolve(
            self,
            seconds=seconds,
            tokens_per_second=self.new_tokens / seconds if seconds else 0.0,
            other_seconds=self.other_seconds + max(0.0, seconds - self.seconds),
        )

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain numbers; `from_dict` reads them."""
        return records.fields_as_plain(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Stats":
        """What `as_dict` gave, as it was.

        Raises:
            ValueError: if these are no totals; the sentence names the field and the value.
        """
        found: Stats = records.make(cls, data, STATS_READERS)
        return found


def _readers(cls: type, **others: records.Reader) -> dict[str, records.Reader]:
    """Counts and amounts by what their fields are declared as."""
    fields: Any = attrs.fields(cls)
    simple = {int: records.whole, float: records.amount}
    return {field.name: others.get(field.name) or simple[field.type] for field in fields}


ROUND_READERS = _readers(
    Round,
    tree=records.one(TokenTree.from_dict),
    drafted=records.maybe(records.one(TokenTree.from_dict)),
    spans=lambda value: tuple(records.several(Span.from_dict)(value)),
    path=lambda value: ints(records.wholes(value)),
    tokens=lambda value: ints(records.wholes(value)),
    hit=records.maybe(records.flag),
    on_host=records.maybe(records.words),
)
STATS_READERS = _readers(Stats)
