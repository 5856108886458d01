"""`talon demo`: the same answer twice, one token at a time and with TALON."""

import re
import sys
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
from talon_core.cli.output import print_json, seconds_of, stdout
from talon_core.defaults import NONE
from talon_core.plugins.parts import Parts, Resolved, resolve

if TYPE_CHECKING:
    from talon_core.cli.session import Session
    from talon_core.decoding.decoder import Decoder
    from talon_core.request import Result

PROMPT = "Write a Python function that says whether a word is a palindrome, and explain how it works."
"""A question like any other: the answer is not to be looked up in it."""

MAX_NEW_TOKENS = 192
WARM_UP_TOKENS = 8


@attrs.frozen(eq=False)
class Comparison:
    """Both runs over the same prompt."""

    session: "Session"
    resolved: Resolved
    without: Resolved
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
    """Decode one prompt twice, without and with TALON, and compare. Exit status 1 if the texts differ."""
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
    raise typer.Exit(0 if comparison.identical else 1)


def compare(
    console: Console | None,
    model: str,
    resolved: Resolved,
    without: Resolved,
    options: dict[str, Any],
    trust_remote_code: bool = False,
) -> Comparison:
    """Load the model once and decode with both decoders; on `console`, if there is one, as it happens."""
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
    runs = []
    for decoder, title in ((plain, "one token at a time"), (fast, f"TALON: {parts.drafter} + {parts.policy}")):
        if console is not None:
            console.print(Rule(title))
        runs.append(_run(console, decoder, options))
    return Comparison(session, resolved, without, *runs)


def _run(console: Console | None, decoder: "Decoder", options: dict[str, Any]) -> "Result":
    """Decode the prompt; where a round brought drafted tokens, its text is green."""
    generation = decoder.stream(PROMPT, **options)
    wrapped = _Wrapped(console.width) if console is not None else None
    for chunk in generation:
        if console is not None and wrapped is not None and chunk.text:
            style = "green" if chunk.round.accepted else ""
            console.print(Text(wrapped.push(chunk.text), style=style), end="", soft_wrap=True)
            sys.stdout.flush()
    result = generation.result()
    if console is not None:
        stats = result.stats
        console.print()
        pace = f"{stats.new_tokens} tokens in {stats.seconds:.2f} s, {stats.tokens_per_second:.1f} tokens/s"
        console.print(Text(pace, style="dim"))
    return result


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
    """What `--json` prints: both runs as `talon generate --json` gives them, and the comparison."""
    return {
        "prompt": PROMPT,
        "identical": comparison.identical,
        "speed_up": comparison.speed_up,
        "plain": as_object(model, comparison.without, comparison.plain),
        "talon": as_object(model, comparison.resolved, comparison.fast),
    }


def _conclude(console: Console, comparison: Comparison) -> None:
    picture = comparison.session.picture(comparison.fast)
    if picture is not None:
        console.print(Rule("the draft tree of one round"))
        console.print(picture)
    console.print(Rule("the comparison"))
    console.print(_table(comparison))
    if comparison.identical:
        verdict = Text("identical output: yes", style="bold green")
    else:
        verdict = Text(f"identical output: no, from token {_first_difference(comparison)} on", style="bold red")
    console.print(verdict.append(f"   speed-up: {comparison.speed_up:.2f}x", style="bold"))


def _first_difference(comparison: Comparison) -> int:
    pairs = zip(comparison.plain.token_ids, comparison.fast.token_ids, strict=False)
    shorter = min(len(comparison.plain.token_ids), len(comparison.fast.token_ids))
    return next((place for place, (one, other) in enumerate(pairs) if one != other), shorter)


def _table(comparison: Comparison) -> Table:
    table = Table()
    table.add_column("")
    table.add_column("one token at a time", justify="right")
    table.add_column("TALON", justify="right", style="bold")
    runs = (comparison.plain.stats, comparison.fast.stats)
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
