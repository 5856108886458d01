"""Tables without a form: as text on a terminal, as Markdown and as LaTeX they say the same."""

import re
from collections.abc import Sequence

import attrs
from rich.table import Table

from talon_core.errors import printable

INTERVAL = len("0.00-0.00")
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}


@attrs.frozen
class Sheet:
    """A table.

    Attributes:
        title: above it.
        heads: of the columns.
        rows: the cells; the first `names` of a row are names, the others are figures. What stands under a figure, its
            interval or its counts, is behind a line end.
        names: how many columns hold names.
        dim: numbers of the rows that are there for orientation.
        caption: how to read it, below it.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1
    dim: frozenset[int] = frozenset()
    caption: str = ""

    def on_terminal(self) -> Table:
        """For rich; long names are broken, figures are not. What a terminal would obey is written out."""
        table = Table(
            title=printable(self.title),
            title_justify="left",
            title_style="bold",
            caption=printable(self.caption) or None,
            caption_justify="left",
        )
        for number, head in enumerate(map(printable, self.heads)):
            if number < self.names:
                table.add_column(head, overflow="fold", min_width=8)
            else:
                lines = [line for row in self.rows for line in row[number].split("\n")]
                longest = max((len(word) for word in head.split()), default=0)
                wide = max([min(longest, INTERVAL), *(len(line) for line in lines)])
                table.add_column(head, justify="right", overflow="fold", min_width=min(wide, INTERVAL + 2))
        for number, row in enumerate(self.rows):
            table.add_row(*map(_lines, row), style="dim" if number in self.dim else "")
        return table

    def as_markdown(self) -> str:
        """A table of GitHub's Markdown, its title in bold above it."""
        names = [_code(row[number]) for row in self.rows for number in range(self.names)]
        cells = [
            [*names[place * self.names : (place + 1) * self.names], *map(_cell, row[self.names :])]
            for place, row in enumerate(self.rows)
        ]
        rules = [":---"] * self.names + ["---:"] * (len(self.heads) - self.names)
        lines = [f"| {' | '.join(row)} |" for row in ([*map(_cell, self.heads)], rules, *cells)]
        below = ["", escaped_markdown(self.caption)] if self.caption else []
        return "\n".join([f"**{escaped_markdown(self.title)}**", "", *lines, *below])

    def as_latex(self) -> str:
        """A `table` for the package booktabs."""
        columns = "l" * self.names + "r" * (len(self.heads) - self.names)
        lines = [" & ".join(escaped_latex(_flat(cell)) for cell in row) + r" \\" for row in (self.heads, *self.rows)]
        caption = f"{self.title}. {self.caption}".removesuffix(". ")
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                f"\\caption{{{escaped_latex(caption)}}}",
                f"\\begin{{tabular}}{{{columns}}}",
                r"\toprule",
                lines[0],
                r"\midrule",
                *lines[1:],
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
            ]
        )


def _lines(cell: str) -> str:
    return "\n".join(map(printable, cell.split("\n")))


def _flat(cell: str) -> str:
    """A figure on one line, what stands under it in brackets."""
    figure, end, below = cell.partition("\n")
    return f"{figure} ({below})" if end else figure


def _cell(cell: str) -> str:
    return escaped_markdown(_flat(cell))


MARK = re.compile(r" \((?:lossy|claimed|peer[^()]*)\)$")
"""What may stand behind a method's name."""


def _code(name: str) -> str:
    """A name as code, so that nothing in it is read as Markdown; what is said of it is behind it."""
    found = MARK.search(name)
    mark = found.group() if found is not None else ""
    method = name.removesuffix(mark)
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", method)), default=0))
    return f"{ticks}{method}{ticks}{mark}".replace("|", "\\|")


def escaped_markdown(text: str) -> str:
    """Text in which nothing is read as Markdown or HTML."""
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", text)


def escaped_latex(text: str) -> str:
    """Text in which nothing is read as LaTeX; ranges of figures have LaTeX's dash."""
    return re.sub(r"(?<=\d)-(?=\d)", "--", "".join(LATEX.get(char, char) for char in text))
