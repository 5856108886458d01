"""Draft trees as people see them: in a terminal, in plain text, or as an SVG picture."""

import io
import math
import re
from collections.abc import Callable, Generator, Iterator, Sequence

import attrs
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.style import Style
from rich.text import Text

from talon_core.rounds import Round
from talon_core.tree import IntArray, TokenTree

LONGEST_TOKEN = 24
"""Cells of a token's text; longer ones are cut."""


@attrs.frozen
class Glyphs:
    """The characters a tree is shown with."""

    root: str
    accepted: str
    bonus: str
    chain: str
    branch: str
    last: str
    bar: str
    cut: str
    blank: str
    levels: str
    """Bars for rising probabilities; empty for none."""
    invisible: dict[int, str]
    """How white space is written, for `str.translate`."""


UNICODE = Glyphs(
    root="●",
    accepted="✔",
    bonus="◆",
    chain=" ─ ",
    branch="├─ ",
    last="╰─ ",
    bar="│  ",
    cut="…",
    blank="␀",
    levels="▁▂▃▄▅▆▇█",
    invisible=str.maketrans({" ": "·", "\n": "↵", "\r": "␍", "\t": "⇥"}),
)
ASCII = Glyphs(
    root="o",
    accepted="*",
    bonus="+",
    chain=" - ",
    branch="|- ",
    last="`- ",
    bar="|  ",
    cut="...",
    blank="''",
    levels="",
    invisible=str.maketrans({" ": "_", "\n": "\\n", "\r": "\\r", "\t": "\\t"}),
)

HEADER = Style(bold=True)
NOTE = Style(dim=True)
ROOT = Style(bold=True)
ACCEPTED = Style(color="green", bold=True)
PROBABILITY = Style(color="green")
REJECTED = Style(dim=True)
BONUS = Style(color="yellow", bold=True)


def render_tree(
    tree: TokenTree,
    path: IntArray | Sequence[int],
    token_text: Callable[[int], str],
    next_token: int | None = None,
    round_number: int | None = None,
) -> RenderableType:
    """A picture of one round: what was drafted, how likely the drafter thought it, and what the target kept.

    The accepted path comes first, ends in the target's own token and is marked; what was rejected stands below it and
    is dim. A node with one child shares its line, and what branches stands under the last node of that line; likewise
    alternatives that lead nowhere share one. Terminals without colour lose nothing but the colour, and those without
    Unicode get ASCII.

    Args:
        tree: the verified tree.
        path: its accepted nodes, root first, shape `(path,)`, int64.
        token_text: the text of one token.
        next_token: the target's own token after the path; None if it was not emitted.
        round_number: shown in the header, counted from 1; None leaves it out.
    """
    return _Picture(tree, tuple(int(node) for node in path), token_text, next_token, round_number)


def to_svg(picture: RenderableType, title: str = "talon", width: int = 80) -> str:
    """A picture of anything rich can show, as an SVG document that loads nothing from elsewhere.

    Args:
        picture: what to show, for example from `render_tree`.
        title: what stands in the window's frame.
        width: columns of the terminal that is shown.
    """
    console = Console(
        record=True,
        file=io.StringIO(),
        width=width,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    console.print(picture)
    svg = console.export_svg(title=title)
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)  # rich's fonts come from a server
    return svg.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")


@attrs.frozen(eq=False)
class _Picture:
    tree: TokenTree
    path: tuple[int, ...]
    token_text: Callable[[int], str]
    next_token: int | None
    round_number: int | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = ASCII if options.ascii_only else UNICODE
        yield Text(self._header(), style=HEADER)
        yield Text()
        yield from _Lines(self, glyphs, max(options.max_width, 20)).texts()
        yield Text()
        marks = f"{glyphs.accepted} accepted   {glyphs.bonus} the target's own"
        yield Text(f"{marks}   % drafter's probability after the parent", style=NOTE)

    def _header(self) -> str:
        number = f"round {self.round_number}: " if self.round_number is not None else ""
        nodes = len(self.tree)
        bonus = " + 1" if self.next_token is not None else ""
        return (
            f"{number}{nodes} node{'' if nodes == 1 else 's'}, depth {int(self.tree.depths.max())}, "
            f"accepted {len(self.path) - 1}{bonus}"
        )


class _Lines:
    """One picture for one width: nodes to labels, labels to lines."""

    def __init__(self, picture: _Picture, glyphs: Glyphs, width: int) -> None:
        self.picture = picture
        self.glyphs = glyphs
        self.width = width
        self.accepted = set(picture.path)
        self.bonus = len(picture.tree)  # the target's own token, as one more node
        self.children: list[list[int]] = [[] for _ in range(len(picture.tree) + 1)]
        for node, parent in enumerate(picture.tree.parents[1:].tolist(), start=1):
            self.children[parent].append(node)
        for children in self.children:
            children.sort(key=self._rank)
        if picture.next_token is not None:
            self.children[picture.path[-1]].insert(0, self.bonus)

    def _rank(self, node: int) -> tuple[bool, bool, float]:
        """The accepted child first, then those that lead somewhere, then the more likely."""
        return (node not in self.accepted, not self.children[node], -float(self.picture.tree.path_logp[node]))

    def texts(self) -> Iterator[Text]:
        """The lines, the root's first."""
        waiting: list[tuple[list[int], str, str]] = [([0], "", "")]  # nodes, guides of their line, and of those below
        while waiting:
            alternatives, guides, below = waiting.pop()
            if len(alternatives) > 1:
                yield from self._fill([self._label(node) for node in alternatives], guides, below, "   ")
                continue
            chain = [alternatives[0]]
            while len(self.children[chain[-1]]) == 1:
                chain.append(self.children[chain[-1]][0])
            branches = self._branches(chain[-1])
            labels = [self._label(node) for node in chain]
            indent = yield from self._fill(labels, guides, below, self.glyphs.chain, bool(branches))
            below += " " * indent
            for number, branch in reversed(list(enumerate(branches, start=1))):
                last = number == len(branches)
                guide, deeper = (self.glyphs.last, "   ") if last else (self.glyphs.branch, self.glyphs.bar)
                waiting.append((branch, below + guide, below + deeper))

    def _branches(self, node: int) -> list[list[int]]:
        """The children of a node, those that are rejected and lead nowhere together on one line."""
        dead = [child for child in self.children[node] if child != self.bonus and self._is_dead(child)]
        alive = [[child] for child in self.children[node] if child not in dead]
        return [*alive, dead] if dead else alive

    def _is_dead(self, node: int) -> bool:
        return node not in self.accepted and not self.children[node]

    def _fill(
        self, labels: list[Text], guides: str, below: str, between: str, branches: bool = False
    ) -> Generator[Text, None, int]:
        """Labels side by side, in as many lines as they need.

        Returns:
            How far right of the guides the last label stands, in cells. If it `branches`, it begins a line of its own
            where it would leave too little room for what comes under it.
        """
        line, empty, indent = self._start(guides), True, 0
        start = line.cell_len
        for number, label in enumerate(labels, start=1):
            last = number == len(labels)
            dangling = 0 if last else cell_len(between.rstrip())  # what says that a line goes on
            column = line.cell_len + cell_len(between)
            crowded = last and branches and column > self.width // 3
            if not empty and (crowded or column + label.cell_len + dangling > self.width):
                if between.strip():
                    line.append(between.rstrip(), style=NOTE)
                yield line
                line, empty, indent = self._start(below + "  "), True, 2
                start = line.cell_len - 2
            if not empty:
                line.append(between, style=NOTE)
                indent = line.cell_len - start
            line.append_text(label)
            empty = False
        yield line
        return indent

    def _start(self, guides: str) -> Text:
        """A line's guides; deep inside a bushy tree only the last of them, so that there is room for the tokens."""
        most = self.width // 2 // 3 * 3
        if len(guides) > most:
            guides = self.glyphs.cut.ljust(3)[:3] + guides[len(guides) - most + 3 :]
        return Text(no_wrap=True, overflow="crop").append(guides, NOTE)

    def _label(self, node: int) -> Text:
        glyphs, tree = self.glyphs, self.picture.tree
        if node == self.bonus:
            return self._marked(glyphs.bonus, int(self.picture.next_token or 0), BONUS)
        if node == 0:
            return self._marked(glyphs.root, int(tree.tokens[0]), ROOT)
        accepted = node in self.accepted
        token = int(tree.tokens[node])
        label = (
            self._marked(glyphs.accepted, token, ACCEPTED) if accepted else Text().append(self._shown(token), REJECTED)
        )
        logp = float(tree.path_logp[node]) - float(tree.path_logp[tree.parents[node]])
        label.append(f" {self._probability(logp)}", style=PROBABILITY if accepted else REJECTED)
        return label

    def _marked(self, mark: str, token: int, style: Style) -> Text:
        return Text().append(f"{mark} {self._shown(token)}", style)

    def _shown(self, token: int) -> str:
        return visible(self.picture.token_text(token), self.glyphs)

    def _probability(self, logp: float) -> str:
        levels = self.glyphs.levels
        level = levels[round(math.exp(min(logp, 0.0)) * (len(levels) - 1))] if levels else ""
        return level + percent(logp)


def visible(text: str, glyphs: Glyphs = UNICODE) -> str:
    """A token's text on one line, with white space and what is not printable made visible, cut if it is long."""
    text = text.translate(glyphs.invisible) or glyphs.blank
    text = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
    if not glyphs.levels:
        text = text.encode("ascii", "backslashreplace").decode()
    if cell_len(text) > LONGEST_TOKEN:
        shortened = Text(text)
        shortened.truncate(LONGEST_TOKEN - len(glyphs.cut))
        text = shortened.plain + glyphs.cut
    return text


def percent(logp: float) -> str:
    """A probability by its natural logarithm, in as few characters as tell something; above 1 by rounding it is 1."""
    prob = math.exp(min(logp, 0.0))
    return "<1%" if prob < 0.005 else f"{100 * prob:.0f}%"


def what_came_of(round_: Round) -> tuple[IntArray, int | None]:
    """The accepted nodes whose tokens a round emitted, and the target's own token; None if a stop came before it."""
    emitted = len(round_.tokens) == len(round_.path)
    return round_.path[: len(round_.tokens) + 1], int(round_.tokens[-1]) if emitted else None
