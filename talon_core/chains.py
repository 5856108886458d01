"""What a policy can say of rounds to come: that their draft trees are chains, of likely tokens or of drawn ones."""

from math import inf, isnan
from numbers import Real
from typing import Any

import attrs
from attrs.validators import instance_of, optional

from talon_core.errors import is_whole, written


def _levels(given: Any) -> Any:
    """As floats; what is none is told of by `_check_levels`, which knows the field."""
    try:
        return given if isinstance(given, str | bytes) else tuple(map(float, given))
    except (TypeError, ValueError):
        return given


def _are_numbers(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, float) for one in value)


def _check_levels(_: Any, field: Any, value: Any) -> None:
    if not _are_numbers(value):
        raise ValueError(f"{field.name} of chains is {written(value)}; it must be numbers, one for each depth")


def _check_prices(_: Any, field: Any, value: Any) -> None:
    if not _are_numbers(value):
        raise ValueError(
            f"{field.name} of an account is {written(value)}; it must be numbers, one for each size of a tree"
        )
    if any(map(isnan, value)):
        raise ValueError(f"{field.name} of an account is {written(value)}; none of them may be NaN")


def _number(given: Any) -> Any:
    """As a float; what is none is told of by `_check_number`."""
    return float(given) if isinstance(given, Real) and not isinstance(given, bool) else given


def _check_number(_: Any, field: Any, value: Any) -> None:
    if not isinstance(value, float) or isnan(value):
        raise ValueError(f"{field.name} of an account is {written(value)}; it must be a number")


def _check_temperature(_: Any, field: Any, value: Any) -> None:
    if value is not None and not (isinstance(value, float) and 0.0 < value < inf):
        raise ValueError(f"{field.name} of chains is {written(value)}; it must be a temperature, more than 0, or None")


def _check_whole(_: Any, field: Any, value: Any) -> None:
    if not is_whole(value) or value < 1:
        raise ValueError(f"{field.name} of chains is {written(value)}; it must be a whole number of at least 1")


@attrs.frozen
class Account:
    """What rounds may lose, in seconds or in any other unit: so a policy that may not lose much tells of many at once.

    A round brings `token` for each token that it emits, and takes `layer` for each layer that is drafted and what
    `nodes` says of the drafted nodes of its tree. Where less than `least` is left behind it, there is no further one.

    Attributes:
        credit: what is left before the first round.
        least: what has to be left before each of the others.
        layer: what a layer takes.
        nodes: what verification takes with 0, 1, ... drafted nodes, one number more than chains have levels.
        token: what a token brings.

    Raises:
        ValueError: if they are no such numbers; the sentence says why.
    """

    credit: float = attrs.field(converter=_number, validator=_check_number)
    least: float = attrs.field(converter=_number, validator=_check_number)
    layer: float = attrs.field(converter=_number, validator=_check_number)
    nodes: tuple[float, ...] = attrs.field(converter=_levels, validator=_check_prices)
    token: float = attrs.field(converter=_number, validator=_check_number)

    def of(self, layers: int, nodes: int, new: int) -> float:
        """What a round changes of the credit.

        Args:
            layers: that were drafted.
            nodes: drafted ones of its tree.
            new: tokens that it has emitted.
        """
        return self.token * new - (self.layer * layers + self.nodes[nodes])


@attrs.frozen
class Chains:
    """What the draft trees of a round and of those behind it will be, whatever they bring.

    In each of these rounds the drafter is asked for candidates after the root. The likeliest joins the tree, as its
    only node, if the log-probability of the path to it is at least the first of `joins`. If that is at least the first
    of `goes_on`, too, candidates after it are asked for, of which the likeliest joins by the second number, and so on:
    at most as many as there are numbers, no deeper than a token could be used, and none behind one that ends the text.
    Nothing else joins, and `finish` sends all of it to the target.

    Attributes:
        rounds: in how many rounds, this one among them, at least 1; it may be more than there will be.
        width: candidates that are asked for after each node, at least 1.
        joins: by depth, from 1, the least natural log-probability of the path, by the drafter's own probabilities, with
            which a token joins the tree; at least one number.
        goes_on: likewise, with which it is drafted from; as many. The last one does not matter.
        account: ends these rounds earlier; None where nothing does.
        drawn: the temperature of the drafter's laws that tokens are drawn from, each as the only child of its node;
            None where the likeliest are taken. The first number is then held against the path to the likeliest
            candidate, which is no draw, and the second against that to what was drawn, by those laws. Where the target
            cannot test such children by itself nothing is run ahead.

    Raises:
        ValueError: if they are none; the sentence says why.
    """

    rounds: int = attrs.field(validator=_check_whole)
    width: int = attrs.field(validator=_check_whole)
    joins: tuple[float, ...] = attrs.field(converter=_levels, validator=_check_levels)
    goes_on: tuple[float, ...] = attrs.field(converter=_levels, validator=_check_levels)
    account: Account | None = attrs.field(default=None, validator=optional(instance_of(Account)))
    drawn: float | None = attrs.field(default=None, converter=_number, validator=_check_temperature)

    def __attrs_post_init__(self) -> None:
        if not self.joins or len(self.joins) != len(self.goes_on):
            raise ValueError(
                f"chains have {len(self.joins)} levels with which tokens join, and {len(self.goes_on)} with which they "
                "are drafted from; there must be as many of both, and at least one"
            )
        if any(map(isnan, (*self.joins, *self.goes_on))):
            raise ValueError(f"chains have the levels {self.joins} and {self.goes_on}; none of them may be NaN")
        if self.account is not None and len(self.account.nodes) != self.depth + 1:
            raise ValueError(
                f"the account of chains of up to {self.depth} drafted nodes says what {len(self.account.nodes)} trees "
                f"take; it must say it of 0 to {self.depth} drafted nodes"
            )

    @property
    def depth(self) -> int:
        """Most drafted tokens of a round."""
        return len(self.joins)
