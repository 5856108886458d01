"""Python code as the API reference shows it: signatures of functions, and of the classes that attrs makes."""

from collections.abc import Sequence
from typing import Any

import griffe

WIDTH = 100
"""Signatures that are longer get a line for each parameter."""

LONGEST_CONSTANT = 60
"""Defaults that are constants of a module are shown by value up to this length, longer ones by name."""

EMPTY = {"dict()": "{}", "list()": "[]", "tuple()": "()"}


def signature(code: Any) -> str:
    """A function, with its overloads, or an attribute, as it is declared."""
    if code.is_attribute:
        declared = code.name if code.annotation is None else f"{code.name}: {code.annotation}"
        return declared if code.value is None or "property" in code.labels else f"{declared} = {written(code.value)}"
    return "\n".join(
        called(one.name, parameters(one), "" if one.returns is None else f" -> {one.returns}")
        for one in code.overloads or [code]
    )


def constructor(cls: Any) -> str:
    """How an object of a class is made; nothing for one that takes no arguments and is no attrs class."""
    family = [*reversed(cls.mro()), cls]
    for one in reversed(family):
        if "__init__" in one.members:
            return called(cls.name, parameters(one.members["__init__"]))
    if not made_by_attrs(cls):
        return ""
    taken: dict[str, str] = {}
    for one in family:
        own = options(one)
        taken = {name: taken[name] for name in taken if name not in own} | own  # the order of attrs
    return called(cls.name, [*taken.values()])


def called(name: str, arguments: Sequence[str], returns: str = "") -> str:
    """A call in one line, or in one for each argument."""
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f"){returns}"])


def parameters(function: Any) -> list[str]:
    """The parameters of a function without `self`."""
    shown: list[str] = []
    stars = {"variadic positional": "*", "variadic keyword": "**"}
    for each in function.parameters:
        kind = each.kind.value
        if each.name in ("self", "cls"):
            continue
        if kind == "keyword-only" and not any(one.startswith("*") for one in shown):
            shown.append("*")
        name = stars.get(kind, "") + each.name
        typed = name if each.annotation is None else f"{name}: {each.annotation}"
        equals = "=" if each.annotation is None else " = "
        shown.append(typed if each.default is None or kind in stars else f"{typed}{equals}{written(each.default)}")
    return shown


def made_by_attrs(cls: Any) -> bool:
    """Whether attrs gives the class its constructor."""
    return any(str(decorator.value).startswith("attrs.") for decorator in cls.decorators)


def is_field(cls: Any, member: Any) -> bool:
    """Whether a member is a field of an attrs class."""
    typed = member.is_attribute and member.annotation is not None
    return bool(made_by_attrs(cls) and typed and "instance-attribute" in member.labels)


def options(cls: Any) -> dict[str, str]:
    """The fields that an attrs class adds to its constructor or declares again, as parameters, by name."""
    shown = {}
    for name, member in cls.members.items():
        if not is_field(cls, member):
            continue
        default = "" if member.value is None else f" = {written(member.value)}"
        if isinstance(member.value, griffe.ExprCall) and str(member.value.function) == "attrs.field":
            given = {one.name: one.value for one in member.value.arguments if isinstance(one, griffe.ExprKeyword)}
            if str(given.get("init")) == "False":
                continue
            default = f" = {written(given['default'])}" if "default" in given else ""
            if "factory" in given:
                made = f"{given['factory']}()"
                default = f" = {EMPTY.get(made, made)}"
        shown[name] = f"{name.lstrip('_')}: {member.annotation}{default}"
    return shown


def written(value: Any) -> str:
    """A default; of a module's constant its value, where that is short."""
    if isinstance(value, griffe.ExprName):
        try:
            constant = value.parent.module[value.name]  # type: ignore[union-attr]
            constant = constant.final_target if constant.is_alias else constant
        except (AttributeError, KeyError, griffe.AliasResolutionError):
            return str(value)
        if constant.is_attribute and constant.value is not None:
            found = written(constant.value)
            return found if len(found) <= LONGEST_CONSTANT else str(value)
    return str(value)
