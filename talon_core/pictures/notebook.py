"""Draft trees as notebooks show them: HTML that needs nothing from elsewhere and suits light and dark pages."""

import math
from collections.abc import Callable
from html import escape

import attrs
from rich.cells import cell_len

from talon_core.pictures.render import percent, visible, what_came_of
from talon_core.rounds import Round
from talon_core.tree import TokenTree

MOST_NODES = 200
"""Nodes in a picture; of larger trees the accepted path and the likeliest nodes are shown."""

FONTS = "ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace"
CELL = 7.25
"""Width of a character, in pixels."""
ROW = 25
HEIGHT = 19
PADDING = 6
GAP = 26
"""Pixels between two layers."""

ACCEPTED = "#2da44e"
OWN = "#d29922"
LIKELY = "#4c8dff"
"""Of medium brightness, so that they can be told from a white page and from a black one."""


@attrs.frozen
class Picture:
    """A picture of a draft tree; a notebook shows it.

    Attributes:
        html: one element, without scripts, styles for the rest of the page, or anything that is loaded.
    """

    html: str

    def _repr_html_(self) -> str:
        return self.html


def picture_of(what: TokenTree | Round, token_text: Callable[[int], str] | None = None) -> Picture:
    """A picture of a tree, or of a round with what the target accepted.

    Args:
        what: either. Of a tree alone, nodes are the bluer the likelier the drafter thinks their path.
        token_text: the text of one token, as `lambda token: tokenizer.decode([token])`; by default tokens are shown by
            their ids.
    """
    if isinstance(what, Round):
        path, own = what_came_of(what)
        return Picture(_Layout(what.tree, [int(node) for node in path], own, token_text).html())
    return Picture(_Layout(what, None, None, token_text).html())


@attrs.frozen
class _Box:
    """One node on the page: where it stands, and what is written in it."""

    left: float
    row: int
    text: str
    share: str

    @property
    def width(self) -> float:
        return _width(self.text, self.share)

    @property
    def middle(self) -> float:
        return self.row * ROW + ROW / 2


def _width(text: str, share: str) -> float:
    return 2 * PADDING + CELL * (cell_len(text) + (1 + len(share) if share else 0))


class _Layout:
    """Nodes to boxes, boxes to HTML; layers stand beside one another, the root's first."""

    def __init__(
        self, tree: TokenTree, path: list[int] | None, own: int | None, token_text: Callable[[int], str] | None
    ) -> None:
        self.tree = tree
        self.path = path
        self.accepted = set(path or ())
        self.own = len(tree) if own is not None else None  # the target's own token, as one more node
        self.shown = sorted({0, *self.accepted, *tree.best(MOST_NODES).tolist()})
        self.parents = {node: int(tree.parents[node]) for node in self.shown}
        self.tokens = {node: int(tree.tokens[node]) for node in self.shown}
        self.depths = {node: int(tree.depths[node]) for node in self.shown}
        self.drawn = {
            child
            for node, drawn in tree.drawn.items()
            for token in drawn.nodes.tolist()
            if (child := tree.child(node, token)) is not None
        }
        if path is not None and self.own is not None and own is not None:
            self.parents[self.own], self.tokens[self.own] = path[-1], own
            self.depths[self.own] = self.depths[path[-1]] + 1
        self.text = {
            node: str(token) if token_text is None else visible(token_text(token))
            for node, token in self.tokens.items()
        }
        self.boxes = self._boxes()

    def _logp(self, node: int) -> float:
        """After the parent."""
        return float(self.tree.path_logp[node]) - float(self.tree.path_logp[self.parents[node]])

    def _share(self, node: int) -> str:
        return "" if node in (0, self.own) else percent(self._logp(node))

    def _boxes(self) -> dict[int, _Box]:
        """A row for each leaf; a node stands beside its first child, so the accepted path is straight and on top."""
        children: dict[int, list[int]] = {node: [] for node in self.parents}
        for node, parent in self.parents.items():
            if node:
                children[parent].append(node)
        for siblings in children.values():
            siblings.sort(key=self._rank)
        rows, waiting, used = {0: 0}, [0], 1
        while waiting:
            node = waiting.pop()
            if node not in rows:
                rows[node], used = used, used + 1
            if children[node]:
                rows[children[node][0]] = rows[node]
            waiting += reversed(children[node])
        widths = [0.0] * (1 + max(self.depths.values()))
        for node, depth in self.depths.items():
            widths[depth] = max(widths[depth], _width(self.text[node], self._share(node)))
        lefts = [1 + sum(widths[:depth]) + GAP * depth for depth in range(len(widths))]
        return {
            node: _Box(lefts[self.depths[node]], rows[node], self.text[node], self._share(node))
            for node in self.parents
        }

    def _rank(self, node: int) -> tuple[bool, bool, float]:
        likely = 0.0 if node == self.own else -float(self.tree.path_logp[node])
        return (node not in self.accepted, node != self.own, likely)

    def html(self) -> str:
        """The picture with a line above it that says what it is, and one below that says how to read it."""
        boxes = self.boxes.values()
        width = max(box.left + box.width for box in boxes) + 1
        height = (1 + max(box.row for box in boxes)) * ROW
        shapes = "".join([self._edges(), *map(self._node, self.boxes)])
        caption, legend = self._caption(), self._legend()
        return (
            '<div style="overflow-x:auto;font-size:12px;line-height:1.6">'
            f"<div><b>{caption}</b></div>"
            f'<svg role="img" aria-label="draft tree: {caption}" width="{width:.0f}" height="{height}" '
            f'viewBox="0 0 {width:.0f} {height}" fill="currentColor" font-size="12" '
            f'font-family="{FONTS}" style="max-width:none">{shapes}</svg>'
            f'<div style="opacity:.7">{legend}</div></div>'
        )

    def _caption(self) -> str:
        nodes = len(self.tree)
        said = f"{nodes} node{'' if nodes == 1 else 's'}, depth {int(self.tree.depths.max())}"
        if self.path is not None:
            said += f", accepted {len(self.path) - 1}{' + 1' if self.own is not None else ''}"
        left_out = nodes - sum(node != self.own for node in self.parents)
        return f"{said}; {left_out} unlikely nodes are not shown" if left_out else said

    def _legend(self) -> str:
        colours = [(ACCEPTED, "accepted"), (OWN, "the target's own")] if self.path is not None else []
        parts = [f'<span style="color:{colour}">■</span> {escape(what)}' for colour, what in colours]
        if len(self.tree) > 1:
            parts.append("%: the drafter's probability after the parent")
            if self.path is None:
                parts.append("the bluer, the likelier the path")
        if self.drawn & set(self.parents):
            parts.append("dashed: drawn")
        return " &nbsp; ".join(parts)

    def _edges(self) -> str:
        """Lines from parents to children; those of one parent are one line, so that none covers another."""
        plain: dict[int, str] = {}
        coloured = ""
        for node, parent in self.parents.items():
            if node:
                colour = ACCEPTED if node in self.accepted else OWN if node == self.own else None
                if colour is None:
                    plain[parent] = plain.get(parent, "") + self._line(node)
                else:
                    coloured += f'<path d="{self._line(node)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        lines = (f'<path d="{line}" fill="none" stroke="currentColor" opacity=".35"/>' for line in plain.values())
        return "".join(lines) + coloured

    def _line(self, node: int) -> str:
        parent, child = self.boxes[self.parents[node]], self.boxes[node]
        down = f"H{child.left - GAP / 2:.0f}V{child.middle:g}" if child.row > parent.row else ""
        return f"M{parent.left + parent.width:.0f} {parent.middle:g}{down}H{child.left:.0f}"

    def _node(self, node: int) -> str:
        box = self.boxes[node]
        top = box.middle - HEIGHT / 2
        dashes = ' stroke-dasharray="3 2"' if node in self.drawn else ""
        text = self._words(box.left + PADDING, box.middle, box.text)
        if box.share:
            right = box.left + PADDING + CELL * (cell_len(box.text) + 1)
            text += self._words(right, box.middle, box.share, ' opacity=".7"')
        rejected = self.path is not None and node not in (*self.accepted, self.own)
        dim = ' opacity=".7"' if rejected else ""
        return (
            f"<g{dim}><title>{escape(self._hint(node))}</title>"
            f'<rect x="{box.left:.1f}" y="{top:g}" width="{box.width:.1f}" height="{HEIGHT}" rx="4" '
            f"{self._look(node)}{dashes}/>{text}</g>"
        )

    def _look(self, node: int) -> str:
        if node == self.own:
            return f'fill="{OWN}" fill-opacity=".25" stroke="{OWN}"'
        if self.path is not None and node in self.accepted and node:
            return f'fill="{ACCEPTED}" fill-opacity=".25" stroke="{ACCEPTED}"'
        if self.path is None and node:
            opacity = 0.05 + 0.5 * math.exp(min(0.0, float(self.tree.path_logp[node])))
            return f'fill="{LIKELY}" fill-opacity="{opacity:.2f}" stroke="{LIKELY}" stroke-opacity=".6"'
        return 'fill-opacity=".06" stroke="currentColor" stroke-opacity=".4"'

    def _hint(self, node: int) -> str:
        """What a reader sees who points at the node."""
        token = f"token {self.tokens[node]}"
        if node == self.own:
            return f"the target's own {token}"
        if node == 0:
            return f"node 0, the root: {token}, the last one of the text"
        drawn = ", drawn" if node in self.drawn else ""
        path = percent(float(self.tree.path_logp[node]))
        return f"node {node}: {token}{drawn}; {self._share(node)} after its parent, {path} from the root on"

    def _words(self, left: float, middle: float, text: str, opacity: str = "") -> str:
        """Text of the width that was reckoned with, whatever the font."""
        width = CELL * cell_len(text)
        return (
            f'<text x="{left:.1f}" y="{middle + 4:g}" textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"'
            f"{opacity}>{escape(text)}</text>"
        )
