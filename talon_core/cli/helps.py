"""Docstrings as the command line shows them: each option is told of in one place."""

import inspect
import re


def attribute_helps(docstring: str) -> dict[str, str]:
    """What a docstring's section `Attributes:` or `Args:` says of each name."""
    section = re.search(r"^(?:Attributes|Args):\n((?:[ \t]+.*\n?|\n)*)", docstring, flags=re.MULTILINE)
    if section is None:
        return {}
    helps: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc("\n" + section[1]).splitlines():
        started = re.match(r"(\w+)(?: \([^)]*\))?: (.*)", line)
        if started is not None:
            name = started[1]
            helps[name] = started[2].strip()
        elif name and line.strip():
            helps[name] += " " + line.strip()
    return helps


def first_sentence(of: object, name: str) -> str:
    """How the docstring of a class or function begins what it says of a name, for people who write no Python."""
    told = attribute_helps(inspect.getdoc(of) or "").get(name, "")
    first = told.partition(". ")[0].rstrip(".").replace('"', "")
    return first[:1].upper() + first[1:]
