"""Who did what when: the rounds of one text, each part's time in a lane of its own."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

import attrs

from talon_core.basics.numerals import counted
from talon_core.rounds import Round, Span

LANES: Mapping[str, tuple[str, ...]] = {
    "target": ("verify",),
    "drafter": ("draft", "prepare"),
    "policy": ("policy",),
    "accept": ("accept",),
    "commit": ("commit",),
    "waiting": ("wait",),
}
"""The lanes, top down, and the parts of the time in each. What is prepared lies beside the target's pass."""

LANED = tuple(part for own in LANES.values() for part in own)
"""All parts that have a lane."""

CAPTION = (
    "Each lane shows when a part was at work, to one scale, in milliseconds; an upright line begins a round. Draft: "
    "layers of the drafter, how likely its best guess is and what it reads before them, what it asks the target beside"
    " the tree and is answered, and its commit, in which it reads what was accepted; the table names each. Prepare: "
    "what the drafter does while the target verifies. Waiting: the round waits until the drafter's call has ended, "
    "which is a part of draft. A filled mark is a hit: what the round's tree was drafted from was prepared. A hollow "
    "one is a miss: something else came."
)
"""How a picture of lanes is read."""

HEADS = ("round", "prepared", "nodes", "tokens", "begins", *LANED, "ends", "of draft")
"""Of the same as a table."""

NAMES: Mapping[tuple[str, str | None], str] = {
    ("draft", None): "drafting",
    ("draft", "guess"): "the drafter tells how likely its best guess is",
    ("draft", "reading"): "the drafter reads what it has not heard of",
    ("draft", "layer"): "draft layer {}",
    ("draft", "inquiry"): "the drafter asks the target beside the tree",
    ("draft", "answers"): "the target's answers to the drafter are read",
    ("draft", "commit"): "the drafter reads what was accepted",
    ("policy", "begin"): "the policies begin trees that grow together",
    ("policy", "width"): "the policy says how wide layer {} is",
    ("policy", "grow"): "the policy chooses from layer {}",
    ("policy", "finish"): "the policy finishes the tree",
    ("policy", "end"): "the policies take back what they know",
    ("policy", "copy"): "the policy is copied, to prepare with",
    ("prepare", None): "the drafter goes on while the target verifies",
    ("prepare", "reading"): "the drafter reads what it has not heard of, while the target verifies",
    ("prepare", "layer"): "layer {} of what is prepared while the target verifies",
    ("prepare", "look"): "nothing more is found to prepare while the target verifies",
    ("prepare", "commit"): "the drafter reads what was accepted, while the target verifies",
    ("wait", None): "the round waits for the drafter's call to end",
}
"""What stretches are called that are not called as their part, by part and work; layers are counted from 1."""

MOST_ROUNDS = 96
"""Rounds that are drawn, unless more are asked for."""

IN_A_BAND = 6
"""Typical rounds that are drawn beside each other."""


@attrs.frozen
class Stretch:
    """A part of a round.

    Attributes:
        part: one of `talon_core.rounds.PARTS` or `BESIDE`.
        start: milliseconds after the beginning of the round, or of the first of several.
        end: likewise.
        name: what it was, as "draft layer 2".
        work: what of the part it was, as "layer 2"; the part itself where nobody knows.
    """

    part: str
    start: float
    end: float
    name: str
    work: str

    @classmethod
    def of(cls, span: Span, begin: float) -> "Stretch":
        """A span, its time counted from `begin`, in seconds."""
        number = "" if span.layer is None else f"{span.layer + 1}"
        work = " ".join(filter(None, [span.work or span.part, number]))
        name = NAMES.get((span.part, span.work), work).format(number)
        return cls(span.part, 1000 * (span.start - begin), 1000 * (span.end - begin), name, work)


@attrs.frozen
class Turn:
    """One round, with its time.

    Attributes:
        number: from 1.
        stretches: what took time, in milliseconds after the first round's beginning.
        hit: as `Round.hit`.
        nodes: of the tree that was verified.
        tokens: that it emitted.
    """

    number: int
    stretches: Sequence[Stretch]
    hit: bool | None
    nodes: int
    tokens: int

    @property
    def start(self) -> float:
        """When it began, in milliseconds."""
        return min(stretch.start for stretch in self.stretches)

    @property
    def end(self) -> float:
        """When it was over, in milliseconds."""
        return max(stretch.end for stretch in self.stretches)

    @property
    def came(self) -> str:
        """What came of what was prepared for it: "hit", "miss", or nothing where nothing was."""
        return "" if self.hit is None else "hit" if self.hit else "miss"

    def milliseconds(self, *parts: str) -> float:
        """The time of some parts."""
        return sum(one.end - one.start for one in self.stretches if one.part in parts)

    def told(self, part: str) -> str:
        """The time of each work of a part, in their order, as "layer 1 0.52, commit 0.10"; "-" where there is none."""
        spent: dict[str, float] = {}
        for one in self.stretches:
            if one.part == part:
                spent[one.work] = spent.get(one.work, 0.0) + one.end - one.start
        return ", ".join(f"{work} {milliseconds:.2f}" for work, milliseconds in spent.items()) or "-"


@attrs.frozen
class Timeline:
    """The rounds of one text, in order.

    Attributes:
        turns: those that took time, at least one.
    """

    turns: Sequence[Turn]

    @property
    def parts(self) -> list[str]:
        """The parts that took time, in the order of their lanes."""
        found = {one.part for turn in self.turns for one in turn.stretches}
        return [part for part in LANED if part in found]

    @property
    def lanes(self) -> Mapping[str, tuple[str, ...]]:
        """The lanes of these rounds: the last only where something waited."""
        parts = self.parts
        return {name: own for name, own in LANES.items() if name != "waiting" or "wait" in parts}

    def rows(self) -> list[list[str]]:
        """The rounds as a table, its heads `HEADS`: what each part took, and what of it each work of the
        drafter, and what came of what was prepared."""
        return [
            [
                *(str(turn.number), turn.came or "-", str(turn.nodes), str(turn.tokens), f"{turn.start:.2f}"),
                *(f"{turn.milliseconds(part):.2f}" for part in LANED),
                *(f"{turn.end:.2f}", turn.told("draft")),
            ]
            for turn in self.turns
        ]

    @property
    def milliseconds(self) -> float:
        """From the first round's beginning to the last one's end."""
        return self.turns[-1].end - self.turns[0].start

    def busy(self, *parts: str) -> float:
        """In which share of the time at least one of some parts was at work, in [0, 1]."""
        return _covered(self._of(*parts)) / self.milliseconds if self.milliseconds else 0.0

    @property
    def at_once(self) -> float:
        """In which share of the time the target and the drafter were both at work, in [0, 1]."""
        both, drafter, target = LANES["target"] + LANES["drafter"], LANES["drafter"], LANES["target"]
        return max(0.0, self.busy(*drafter) + self.busy(*target) - self.busy(*both))

    def _of(self, *parts: str) -> list[tuple[float, float]]:
        return [(one.start, one.end) for turn in self.turns for one in turn.stretches if one.part in parts]

    @property
    def said(self) -> str:
        """What is seen, in a sentence or two."""
        turns = self.turns
        tokens = sum(turn.tokens for turn in turns)
        target, drafter = self.busy(*LANES["target"]), self.busy(*LANES["drafter"])
        said = (
            f"{counted(len(turns), 'round')}, {counted(tokens, 'token')} in {self.milliseconds:.1f} ms. The target "
            f"was at work in {target:.0%} of the time and the drafter in {drafter:.0%}"
        )
        told = [turn.hit for turn in turns if turn.hit is not None]
        if "prepare" not in self.parts:
            return f"{said}, one after the other."
        waited = sum(turn.milliseconds("wait") for turn in turns) / self.milliseconds
        said += f", both at once in {self.at_once:.0%}; rounds waited for the drafter in {waited:.0%}."
        return f"{said} {told.count(True)} of {counted(len(told), 'round')} began with what was prepared."

    def first(self, most: int) -> "Timeline":
        """The first rounds alone."""
        return Timeline(self.turns[:most])

    def middle(self, most: int = IN_A_BAND) -> "Timeline":
        """Some rounds from the middle, where the text is neither begun nor over."""
        first = max(0, (len(self.turns) - most) // 2)
        return Timeline(self.turns[first : first + most])

    def bands(self) -> list[list[Turn]]:
        """Rounds that are drawn beside each other, all to one scale: a round is never cut in two."""
        width = self.width
        found: list[list[Turn]] = []
        for turn in self.turns:
            if not found or turn.end - found[-1][0].start > width:
                found.append([])
            found[-1].append(turn)
        return found

    @property
    def width(self) -> float:
        """Milliseconds of a band: so that some typical rounds fit, and the longest."""
        lengths = [turn.end - turn.start for turn in self.turns]
        steps = [after.start - turn.start for turn, after in zip(self.turns, self.turns[1:], strict=False)]
        return max(IN_A_BAND * statistics.median(steps or lengths), *lengths, 1e-9)


def timeline_of(rounds: Iterable[Round]) -> Timeline:
    """Who did what when in these rounds.

    Args:
        rounds: of one text, in order, as `Result.rounds`.

    Raises:
        ValueError: if none of them says what took time.
    """
    known = [(number, one) for number, one in enumerate(rounds, start=1) if one.spans]
    if not known:
        raise ValueError("there is no round that says what took time; there must be at least one with spans")
    begin = min(span.start for span in known[0][1].spans)
    turns = [
        Turn(number, stretches(one.spans, begin), one.hit, len(one.tree), len(one.tokens)) for number, one in known
    ]
    return Timeline(turns)


def stretches(spans: Sequence[Span], begin: float) -> list[Stretch]:
    """What took time in a round, with what each stretch is called.

    Args:
        spans: the round's.
        begin: from when time is counted, in seconds.
    """
    return [Stretch.of(span, begin) for span in spans]


def _covered(stretches: Iterable[tuple[float, float]]) -> float:
    """The length of what at least one of them covers."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(stretches):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
