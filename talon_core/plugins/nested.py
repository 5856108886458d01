"""Parts within parts: how an option names other parts, as in `of=eagle3[path=heads;layers=2+15]+ngram`."""


def parts_in(of: str) -> list[str] | None:
    """The parts that are joined by `+`, each a name, and it may be its options in brackets, with `;` between them.

    An option within the brackets may name parts with brackets of their own.

    Args:
        of: what is written.

    Returns:
        The parts as they are written, in order; None if one has no name, or brackets do not fit.
    """
    parts = _split(of, "+")
    return parts if parts is not None and all(map(_is_part, parts)) else None


def part_spec(part: str) -> str:
    """A part as a spec of its own: `talon[budget=16;mu=0.1]` is `talon:budget=16,mu=0.1`.

    What has no `=` goes on with the option before it, as in `static[shape=0;1;0.0]`.

    Args:
        part: one of `parts_in`.
    """
    name, _, inner = part.partition("[")
    options: list[str] = []
    for piece in filter(None, _split(inner[:-1], ";") or ()):
        if options and "=" not in piece.partition("[")[0]:
            options[-1] += f";{piece}"
        else:
            options.append(piece)
    return f"{name}:{','.join(options)}" if options else name


def _split(text: str, at: str) -> list[str] | None:
    """Split a text where a character stands outside of all brackets; None if these do not fit."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth < 0:
            return None
        if letter == at and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return None if depth else parts


def _is_part(text: str) -> bool:
    name, bracket, inner = text.partition("[")
    closed = inner.endswith("]") and _split(inner[:-1], ";") is not None
    return bool(name) and "]" not in name and (closed or not bracket)
