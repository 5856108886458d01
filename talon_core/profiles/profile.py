"""What a profile is: points that were measured or worked out, of one machine, model and drafter, and costs by them."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

import attrs
import numpy as np

from talon_core.basics import records
from talon_core.basics.processors import of_earlier
from talon_core.costs import Costs
from talon_core.errors import written
from talon_core.profiles.grid import Error, Fit, Points, error
from talon_core.tree_arrays import FloatArray, IntArray

KIND = "talon profile"
FORMAT = 1
"""Of the file; another number is another form."""

AXES: Mapping[str, tuple[str, ...]] = {
    "verify": ("nodes", "context", "batch"),
    "draft": ("rows", "width"),
    "accept": ("nodes",),
    "commit": ("tokens",),
    "tell": ("tokens",),
    "read": ("tokens",),
    "catch_up": ("tokens",),
    "rest": ("rounds",),
    "chain": ("layers",),
}
"""The tables of a profile, and what their points are by; see `Costs`. Nodes of `verify` are those of each tree."""

MACHINE = ("cpu", "gpu", "threads", "device", "dtype", "attention", "accelerator")
"""What of a machine a profile holds for, as `describe_environment` calls it."""

ORIGINS = ("measured", "computed")

REMEMBERED = 1 << 16
"""Passes whose seconds are remembered: who tries policies on many texts asks for the same sizes and lengths again."""


@attrs.frozen(eq=False)
class Table:
    """Seconds of one kind, as they were measured.

    Attributes:
        kind: a key of `AXES`.
        points: seconds by sizes; none if nothing is known.
    """

    kind: str
    points: Points = attrs.field(factory=dict)

    @cached_property
    def fit(self) -> Fit | None:
        """The monotone fit; None without points."""
        return Fit(self.points) if self.points else None

    @cached_property
    def error(self) -> Error | None:
        """Of the fit, by leaving each point out; None where no point is between two others."""
        return error(self.points)

    @cached_property
    def at(self) -> Callable[..., float | None]:
        """`at(*sizes)`: seconds by the fit; None if nothing is known."""
        return _nothing if self.fit is None else lru_cache(maxsize=REMEMBERED)(self.fit.at)

    def as_list(self) -> list[list[Any]]:
        """The points as plain data: the sizes of each, then its seconds."""
        return [[*sizes, self.points[sizes]] for sizes in sorted(self.points)]

    @classmethod
    def of_list(cls, kind: str, value: Any) -> "Table":
        """What `as_list` gave.

        Raises:
            ValueError: with the end of a sentence about the table.
        """
        what = f"{', '.join(AXES[kind])} and seconds"
        if not isinstance(value, list):
            raise ValueError(f"is {written(value)}; it must be a list of points")  # noqa: TRY004 - as all readers
        points: dict[tuple[int, ...], float] = {}
        for place, point in enumerate(value):
            try:
                if not isinstance(point, list) or len(point) != len(AXES[kind]) + 1:
                    raise ValueError(f"is {written(point)}; it must be a list of {what}")
                *sizes, seconds = point
                at = tuple(records.whole(size, 1) for size in sizes)
                if at in points:
                    raise ValueError(f"is {written(point)}, of sizes that are there before; each must be there once")
                points[at] = records.amount(seconds)
            except ValueError as fault:
                raise ValueError(f"has at {place} what {fault}") from None
        return cls(kind, points)


@attrs.frozen(eq=False)
class Profile(Costs):
    """What passes take on one machine, with one model and one drafter.

    Attributes:
        name: what it is called.
        origin: "measured", or "computed" where it was worked out from a datasheet.
        machine: where; `MACHINE` and what else `describe_environment` says of it.
        model: of which: its `name`, `parameters` and `weights_sha256`, which may be None.
        drafter: with which, as it is written; None without one.
        made: when, and how; for readers.
        verify_table: of the target's passes.
        draft_table: of the drafter's layers.
        accept_table: of the rule's walk.
        commit_table: of keeping what was emitted.
        tell_table: of the drafter's learning of it.
        read_table: of reading prompts, by the target and by a drafter that reads them at once.
        catch_up_table: of the drafter's reading of what it was told of before it was asked; none in profiles that were
            made when it was a part of `read_table`.
        rest_table: of what rounds without a draft take besides their passes; none in profiles that were made when each
            pass was run in its own round.
        chain_table: of what rounds take besides the target's pass where their passes are run ahead; none where they
            cannot be, and in profiles that were made when none were.
        temperature: of the texts; 0 for greedy ones.
    """

    name: str
    origin: str
    machine: Mapping[str, Any]
    model: Mapping[str, Any]
    drafter: str | None
    made: Mapping[str, Any]
    verify_table: Table
    draft_table: Table = attrs.field(factory=lambda: Table("draft"))
    accept_table: Table = attrs.field(factory=lambda: Table("accept"))
    commit_table: Table = attrs.field(factory=lambda: Table("commit"))
    tell_table: Table = attrs.field(factory=lambda: Table("tell"))
    read_table: Table = attrs.field(factory=lambda: Table("read"))
    catch_up_table: Table = attrs.field(factory=lambda: Table("catch_up"))
    rest_table: Table = attrs.field(factory=lambda: Table("rest"))
    chain_table: Table = attrs.field(factory=lambda: Table("chain"))
    temperature: float = 0.0

    @property
    def fixed(self) -> bool:
        return True

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables by their kinds."""
        return {kind: getattr(self, f"{kind}_table") for kind in AXES}

    def verify(self, nodes: int, context: int, batch: int = 1) -> float | None:
        fit = self.verify_table.fit
        return None if fit is None else self.verify_table.at(nodes / _sharing(fit, batch), context, batch)

    def verify_each(self, nodes: IntArray, context: int, batch: int = 1) -> FloatArray | None:
        fit = self.verify_table.fit
        return None if fit is None else fit.along(nodes / _sharing(fit, batch), context, batch)

    def verify_after(self, nodes: IntArray, contexts: Sequence[int], batch: int = 1) -> Sequence[FloatArray | None]:
        fit = self.verify_table.fit
        if fit is None:
            return [None] * len(contexts)
        return [*fit.along_each(nodes / _sharing(fit, batch), np.array(contexts, dtype=np.float64), batch)]

    def draft(self, rows: int, width: int) -> float | None:
        return self.draft_table.at(rows, width)

    def accept(self, nodes: int) -> float | None:
        return self.accept_table.at(nodes)

    def commit(self, tokens: int) -> float | None:
        return self.commit_table.at(tokens)

    def tell(self, tokens: int) -> float | None:
        return self.tell_table.at(tokens)

    def know(self, drafter: str) -> bool:
        return self.drafter is not None and self.drafter.partition(":")[0].strip() == drafter

    def read(self, tokens: int) -> float | None:
        return self.read_table.at(tokens)

    def catch_up(self, tokens: int) -> float | None:
        return self.catch_up_table.at(tokens)

    def rest(self, rounds: int) -> float | None:
        return self.rest_table.at(rounds)

    def chain(self, layers: int) -> float | None:
        return self.chain_table.at(layers)

    def differences(self, machine: Mapping[str, Any], weights: str | None = None, drafter: str | None = None) -> str:
        """In what another machine, model or drafter is not the profile's, as the end of a sentence; empty if none is.

        Args:
            machine: what is known of it, by the names of `MACHINE`, and its model's `weight_bits`; what is not there is
                not compared.
            weights: the model's `weights_hash`; None if nobody asks.
            drafter: as it is written; None if nobody asks.
        """
        both = [(name, self.machine.get(name), machine[name]) for name in MACHINE if name in machine]
        found = [
            f"its {name} is {_shown(own)}{of_earlier(own, other)} and not {_shown(other)}"
            for name, own, other in both
            if _same(own) != _same(other)
        ]
        bits, others = self.machine.get("weight_bits"), machine.get("weight_bits")
        if None not in (bits, others) and bits != others:
            found.append(f"the weights of its model have {bits} bits and not {others}")
        if weights is not None and self.model.get("weights_sha256") != weights:
            found.append(f"its model is {self.model.get('name')}, with other weights")
        if drafter is not None and self.drafter != drafter:
            found.append(f"its drafter is {_shown(self.drafter)} and not {_shown(drafter)}")
        return "; ".join(found)

    @cached_property
    def fingerprint(self) -> str:
        """Tells the profile from others: of all that it says."""
        told = self.as_dict()
        if not self.temperature:  # profiles that were made before there was one are the same as before
            del told["temperature"]
        return records.sha256_of(told)[:16]

    def as_dict(self) -> dict[str, Any]:
        """It as plain data, for JSON; `from_dict` reads it."""
        return {
            "kind": KIND,
            "format": FORMAT,
            "name": self.name,
            "origin": self.origin,
            "machine": dict(self.machine),
            "model": dict(self.model),
            "drafter": self.drafter,
            "temperature": self.temperature,
            "made": dict(self.made),
            **{kind: table.as_list() for kind, table in self.tables.items()},
        }

    @classmethod
    def from_dict(cls, data: Any) -> "Profile":
        """What `as_dict` gave.

        Raises:
            ValueError: if it is no profile, or of another version; the sentence names the field and the value.
        """
        fields = records.of_kind(data, KIND, FORMAT)
        renamed = {f"{name}_table" if name in AXES else name: value for name, value in fields.items()}
        try:
            found: Profile = records.make(cls, renamed, READERS, "")
        except ValueError as fault:
            raise ValueError(str(fault).replace("_table'", "'")) from None
        if not found.verify_table.points:
            raise ValueError("'verify' is empty; it must have at least one point")
        return found


def _nothing(*sizes: float) -> None:
    """What is known of sizes where no point is."""


def _sharing(fit: Fit, batch: int) -> int:
    """By how many trees the nodes of a pass are divided."""
    batches = fit.axes[2]
    # where one batch is all that is known, as many nodes altogether are taken to last as long
    return batches[0] if len(batches) == 1 else batch


def _same(value: Any) -> Any:
    """What of a value is compared: of a GPU its name, without the driver and the clock."""
    if isinstance(value, list):
        return [str(each).partition(",")[0] for each in value]
    return "cuda" if isinstance(value, str) and value.startswith("cuda") else value


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, _same(value))) or "none"
    return "none" if value is None else str(value)


def _table(kind: str) -> records.Reader:
    return lambda value: Table.of_list(kind, value)


_machine = records.holding(
    {
        **dict.fromkeys(MACHINE, records.maybe(records.words)),
        "gpu": records.maybe(records.texts),
        "threads": records.maybe(partial(records.whole, least=1)),
    }
)


READERS: Mapping[str, records.Reader] = {
    "name": records.words,
    "origin": records.one_of(*ORIGINS),
    "machine": _machine,
    "model": records.dictionary,
    "drafter": records.maybe(records.words),
    "temperature": records.amount,
    "made": records.dictionary,
    **{f"{kind}_table": _table(kind) for kind in AXES},
}
