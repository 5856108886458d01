"""`talon demo`: the same answer, one token at a time and with TALON, in turns."""

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from talon_core.cli import options as opts
from talon_core.cli.generate import as_decoded, as_object
from talon_core.cli.output import note, print_json, seconds_of, stdout
from talon_core.defaults import NONE
from talon_core.plugins.parts import Parts, Resolved, resolve

if TYPE_CHECKING:
    from talon_core.cli.session import Session
    from talon_core.decoding.decoder import Decoder
    from talon_core.request import Result

PROMPT = "Write a Python function that says whether a word is a palindrome, and explain how it works."
"""A question like any other: the answer is not to be looked up in it."""

MAX_NEW_TOKENS = 192
WARM_UP_TOKENS = 32

TURNS = 3
"""How often each decodes the prompt: an odd number, of which one is in the middle. One run says little of speed on a
machine that does other things as well."""


@attrs.frozen(eq=False)
class Turn:
    """The prompt decoded one token at a time, and with TALON right after it."""

    plain: "Result"
    fast: "Result"

    @property
    def identical(self) -> bool:
        """Whether both gave the same tokens."""
        return self.plain.token_ids == self.fast.token_ids

    @property
    def speed_up(self) -> float:
        """How many times as many tokens a second TALON gave."""
        plain = self.plain.stats.tokens_per_second
        return self.fast.stats.tokens_per_second / plain if plain else 0.0


@attrs.frozen(eq=False)
class Comparison:
    """All turns over the same prompt.

    Attributes:
        shown: the turn that was shown as it happened, which is not timed: a text that is shown piece by piece takes
            time for each pass, and more passes are needed without TALON. None where nothing is shown.
        turns: those that are timed.
    """

    session: "Session"
    resolved: Resolved
    without: Resolved
    shown: Turn | None
    turns: Sequence[Turn]

    @property
    def different(self) -> Turn | None:
        """The first turn in which TALON gave other tokens; None if there is none."""
        shown = [] if self.shown is None else [self.shown]
        return next((turn for turn in (*shown, *self.turns) if not turn.identical), None)

    @property
    def middle(self) -> Turn:
        """The turn of the median speed-up."""
        return sorted(self.turns, key=lambda turn: turn.speed_up)[len(self.turns) // 2]


def demo(
    model: opts.Model = opts.DEFAULT_MODEL,
    trust_remote_code: opts.TrustRemoteCode = False,
    drafter: opts.Drafter = opts.DEFAULT_DRAFTER,
    policy: opts.Policy = opts.DEFAULT_POLICY,
    rule: opts.Rule = opts.DEFAULT_RULE,
    attention: opts.Attention = None,
    max_new_tokens: Annotated[
        int, typer.Option(parser=opts.whole_number, metavar="N", help="Most tokens to make.")
    ] = MAX_NEW_TOKENS,
    as_json: opts.Json = False,
) -> None:
    """Decode one prompt without and with TALON, in turns, and compare. Exit status 1 if the texts differ."""
    generation_options = opts.sampling_options(0.0, None, None, None, max_new_tokens)
    resolved = opts.resolved(drafter, policy, rule, attention)
    if resolved.policy is None:
        raise ValueError("--policy is none; the demo compares a policy with none, so it must be another one")
    without = resolve(Parts(policy=NONE, rule=rule, attention=attention), resolved.registry)
    console = None if as_json else stdout()
    comparison = compare(console, model, resolved, without, generation_options, trust_remote_code)
    if console is None:
        print_json(as_report(model, comparison))
    else:
        _conclude(console, comparison)
    raise typer.Exit(0 if comparison.different is None else 1)


def compare(
    console: Console | None,
    model: str,
    resolved: Resolved,
    without: Resolved,
    options: dict[str, Any],
    trust_remote_code: bool = False,
) -> Comparison:
    """Load the model once and decode with both decoders in turns; on `console`, one turn before as it happens."""
    from talon_core.cli.session import open_session

    session = open_session(model, trust_remote_code=trust_remote_code)
    resolved = resolved.for_model(session.model)
    plain, fast = session.decoder(without), session.decoder(resolved)
    resolved = as_decoded(resolved, fast)
    parts = resolved.parts
    for decoder in (plain, fast):
        decoder.generate(PROMPT, temperature=0.0, max_new_tokens=WARM_UP_TOKENS)
    if console is not None:
        console.print(Rule("the prompt"))
        console.print(Text(PROMPT, style="dim"))
    shown = None
    if console is not None:
        titles = ("one token at a time", f"TALON: {parts.drafter} + {parts.policy}")
        shown = Turn(*(_shown(console, one, title, options) for one, title in zip((plain, fast), titles, strict=True)))
    note("decoding both in turns, to take the time")  # and nothing moves meanwhile
    turns = [Turn(plain.generate(PROMPT, **options), fast.generate(PROMPT, **options)) for _ in range(TURNS)]
    return Comparison(session, resolved, without, shown, turns)


def _shown(console: Console, decoder: "Decoder", title: str, options: dict[str, Any]) -> "Result":
    """Decode the prompt; where a round brought drafted tokens, its text is green."""
    console.print(Rule(title))
    generation, wrapped = decoder.stream(PROMPT, **options), _Wrapped(console.width)
    for chunk in generation:
        if chunk.text:
            style = "green" if chunk.round.accepted else ""
            console.print(Text(wrapped.push(chunk.text), style=style), end="", soft_wrap=True)
            sys.stdout.flush()
    console.print()
    return generation.result()


class _Wrapped:
    """Breaks a growing text between words."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._column = 0

    def push(self, text: str) -> str:
        """The next piece, with line ends in the place of spaces where the line is full."""
        pieces = []
        for space, word in re.findall(r"([^\S\n]*)(\n|\S+|$)", text):
            if word == "\n":
                self._column = 0
                pieces.append(word)
                continue
            cells = cell_len(space + word)
            if space and self._column + cells > self._width:
                space, cells, self._column = "\n", cell_len(word), 0
            self._column += cells
            pieces.append(space + word)
        return "".join(pieces)


def as_report(model: str, comparison: Comparison) -> dict[str, Any]:
    """What `--json` prints: both runs of a turn as `talon generate --json` gives them, and the comparison.

    The turn is the middle one, or the first in which TALON gave other tokens.
    """
    shown = comparison.different or comparison.middle
    return {
        "prompt": PROMPT,
        "identical": comparison.different is None,
        "speed_up": comparison.middle.speed_up,
        "speed_ups": [turn.speed_up for turn in comparison.turns],
        "plain": as_object(model, comparison.without, shown.plain),
        "talon": as_object(model, comparison.resolved, shown.fast),
    }


def _conclude(console: Console, comparison: Comparison) -> None:
    middle, different = comparison.middle, comparison.different
    picture = comparison.session.picture(middle.fast)
    if picture is not None:
        console.print(Rule("the draft tree of one round"))
        console.print(picture)
    console.print(Rule("the comparison"))
    console.print(_table(middle))
    if different is None:
        verdict = Text("identical output: yes", style="bold green")
    else:
        verdict = Text(f"identical output: no, from token {_first_difference(different)} on", style="bold red")
    console.print(verdict.append(f"   speed-up: {middle.speed_up:.2f}x", style="bold"))
    found = ", ".join(f"{turn.speed_up:.2f}x" for turn in comparison.turns)
    said = (
        f"Both decoded it {len(comparison.turns)} times in turns, unseen: {found}. The table is of the middle one; the "
        "prompt was read before. `talon bench run` measures over many prompts."
    )
    console.print(Text(said, style="dim"))


def _first_difference(turn: Turn) -> int:
    pairs = zip(turn.plain.token_ids, turn.fast.token_ids, strict=False)
    shorter = min(len(turn.plain.token_ids), len(turn.fast.token_ids))
    return next((place for place, (one, other) in enumerate(pairs) if one != other), shorter)


def _table(turn: Turn) -> Table:
    table = Table()
    table.add_column("")
    table.add_column("one token at a time", justify="right")
    table.add_column("TALON", justify="right", style="bold")
    runs = (turn.plain.stats, turn.fast.stats)
    table.add_row("tokens/s", *(f"{stats.tokens_per_second:.1f}" for stats in runs))
    table.add_row("mean accepted tokens", *(f"{stats.mean_accepted_tokens:.2f}" for stats in runs))
    table.add_row("target passes", *(str(stats.target_passes) for stats in runs))
    table.add_row("nodes verified", *(str(stats.nodes_verified) for stats in runs))
    table.add_row("new tokens", *(str(stats.new_tokens) for stats in runs))
    table.add_row("seconds", *(f"{stats.seconds:.2f}" for stats in runs), end_section=True)
    shares = [(seconds_of(stats), stats.seconds or 1.0) for stats in runs]
    for part in shares[0][0]:
        table.add_row(f"time: {part}", *(f"{100 * seconds[part] / total:.1f}%" for seconds, total in shares))
    return table
