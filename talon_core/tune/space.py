"""What is searched: the options that a policy says can be, and those that the user says."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from talon_core.basics.numerals import decimal, whole
from talon_core.errors import PluginError, naming, written
from talon_core.plugins.parts import built
from talon_core.plugins.presets import spelled_out
from talon_core.plugins.registry import Registered, Registry
from talon_core.plugins.specs import build, join_spec, option_fields, parse_spec, types_of, unknown_option
from talon_core.searching import KEY, Among, Range, as_written

DIGITS = 3
"""Of a number that is tried and is no whole number: more would say more than prompts can."""


@attrs.frozen
class Dimension:
    """One option that is searched.

    Attributes:
        option: its name.
        values: which.
        whole: whether they are whole numbers.
        default: as the policy is without a search, as text.
    """

    option: str
    values: Range | Among
    whole: bool
    default: str

    def text(self, value: Any) -> str:
        """A value as it is written in a spec: of three digits, but no whole number is rounded."""
        if isinstance(self.values, Among):
            return str(value)
        if self.whole:
            return str(int(value))
        rounded = float(f"{value:.{DIGITS}g}")
        return repr(min(max(rounded, float(self.values.low)), float(self.values.high)))

    def of_text(self, text: str) -> Any:
        """The value that a text stands for, as `values` has it; None if it is none of them."""
        if isinstance(self.values, Among):
            return text if text in self.values.values else None
        try:
            value = whole(text) if self.whole else float(text)
        except ValueError:  # of an option that may also be a word
            return None
        return value if self.values.low <= value <= self.values.high else None

    def as_dict(self) -> dict[str, Any]:
        """It as plain data."""
        return {"option": self.option, "values": str(self.values), "default": self.default}


@attrs.frozen
class Space:
    """A policy and what of it is searched.

    Attributes:
        policy: its registered name.
        fixed: the options that are given, as text.
        dimensions: what is searched, in the order of the class's fields.
    """

    policy: str
    fixed: Mapping[str, str]
    dimensions: tuple[Dimension, ...]

    @property
    def base(self) -> str:
        """The spec without a search: what is fixed, and the policy's defaults."""
        return join_spec(self.policy, self.fixed)

    def spec(self, chosen: Mapping[str, str]) -> str:
        """The spec with these values of what is searched, as text."""
        return join_spec(self.policy, {**self.fixed, **chosen})

    @property
    def defaults(self) -> dict[str, str]:
        """The values of what is searched, as they are without."""
        return {one.option: one.default for one in self.dimensions}


def space_of(registry: Registry, spec: str, searches: Sequence[str] = ()) -> Space:
    """What of a policy is searched.

    Args:
        registry: where its name is looked up.
        spec: the policy; what is written in it is fixed.
        searches: `OPTION=LOW..HIGH`, the same with `:log`, or `OPTION=a|b|c`; each adds an option, or replaces what the
            policy says of it.

    Raises:
        LookupError: for an unknown policy.
        ValueError: if there is nothing to search, or a range is none or is refused by the policy; the sentence says
            what would be right.
        PluginError: if what a policy says of its options is none of `talon_core.searching`.
    """
    spec = spelled_out(registry, spec)
    name, fixed = parse_spec(spec)
    registered = registry.get("tree policy", name)
    fields = option_fields(registered)
    made = build(registry, "tree policy", spec)
    asked = _asked(name, fields, searches)
    for option in asked:
        if option in fixed:
            raise ValueError(f"--search has '{option}', which '{spec}' gives a value already; leave one of them out")
    said = {option: _said(registered, field) for option, field in fields.items()}
    found = []
    for option, field in fields.items():
        values = asked.get(option) or said[option]
        if values is not None and option not in fixed:
            kinds, default = types_of(field.type), getattr(made, field.name)
            is_whole = isinstance(values, Range) and int in kinds and float not in kinds
            found.append(Dimension(option, values, is_whole, as_written(default)))
    if not found:
        raise ValueError(_nothing(name, fixed, fields, [option for option, values in said.items() if values]))
    space = Space(name, fixed, tuple(found))
    for one in space.dimensions:
        _check_ends(registry, space, one)
    return space


def _nothing(name: str, fixed: Mapping[str, str], fields: Mapping[str, Any], said: Sequence[str]) -> str:
    if said:
        given = ", ".join(option for option in said if option in fixed)
        return f"there is nothing to search: '{name}' is given {given}; leave one of them out"
    if not fields:
        return f"there is nothing to search: tree policy '{name}' has no options; take another policy"
    option, field = next(iter(fields.items()))
    as_in = f"{option}=LOW..HIGH" if {int, float} & {*types_of(field.type)} else f"'{option}=a|b'"
    return (
        f"there is nothing to search: tree policy '{name}' does not say which values of its options may be worth a "
        f"try; say it, as in --search {as_in} (it has: {', '.join(fields)})"
    )


def _said(registered: Registered, field: "attrs.Attribute[Any]") -> Range | Among | None:
    """What a policy's author says of an option."""
    values = field.metadata.get(KEY)
    if values is None or isinstance(values, Range | Among):
        return values
    raise PluginError(
        f"{naming(registered.kind, registered.cls)} says of '{field.alias}' that {written(values)} is searched; it "
        "must be what searched(low, high) or searched_among(...) of talon_core gives"
    )


def _asked(policy: str, fields: Mapping[str, Any], searches: Sequence[str]) -> dict[str, Range | Among]:
    """What the user says."""
    found: dict[str, Range | Among] = {}
    for search in searches:
        option, equals, text = search.partition("=")
        option, text = option.strip().replace("-", "_"), text.strip()
        if not equals or not option or not text:
            raise ValueError(
                f"--search is '{search}'; it is written OPTION=LOW..HIGH, OPTION=LOW..HIGH:log or OPTION=a|b"
            )
        if option not in fields:
            raise ValueError(f"--search {search}: {unknown_option('tree policy', policy, option, fields)}")
        if option in found:
            raise ValueError(f"--search has '{option}' twice; give it once")
        try:
            found[option] = _values(text, types_of(fields[option].type))
        except ValueError as error:
            raise ValueError(f"--search {search}: {error}") from None
    return found


def _values(text: str, kinds: Sequence[Any]) -> Range | Among:
    if "|" in text or ".." not in text:
        return Among(tuple(part.strip() for part in text.split("|")))
    if int not in kinds and float not in kinds:
        raise ValueError("the option is no number; write its values with | between them")
    ends, colon, scale = text.partition(":")
    if colon and scale != "log":
        raise ValueError(f"'{scale}' is no scale; there is log")
    read = decimal if float in kinds else whole
    low, _, high = (part.strip() for part in ends.partition(".."))
    try:
        return Range(read(low), read(high), bool(colon))
    except ValueError as error:
        wrong = next((each for each in (low, high) if _no_number(read, each)), None)
        kind = "a finite number" if float in kinds else "a whole number"
        raise ValueError(str(error) if wrong is None else f"'{wrong}' is not {kind}") from None


def _no_number(read: Any, text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return True
    return False


def _check_ends(registry: Registry, space: Space, one: Dimension) -> None:
    """Refuse values that the policy does not take, before anything is tried."""
    values = one.values
    texts = values.values if isinstance(values, Among) else [one.text(values.low), one.text(values.high)]
    for text in texts:
        try:
            built(registry, "tree policy", space.spec({one.option: text}))
        except ValueError as error:
            raise ValueError(f"'{one.option}' cannot be searched in {values}: with {text}, {error}") from error
