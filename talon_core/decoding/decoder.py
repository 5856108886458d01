"""The decoder: a target, a drafter, a tree policy and an acceptance rule, put together."""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, overload

import attrs
import numpy as np

from talon_core.certificates.standing import standing
from talon_core.choices import Choices
from talon_core.costs import Costs
from talon_core.decoding.hosting import process_worker
from talon_core.decoding.loading import BATCH_SIZE
from talon_core.decoding.source import Source
from talon_core.decoding.streaming import StreamedGeneration
from talon_core.defaults import DEFAULT_PLACE
from talon_core.drafter import Drafter, DrafterSpec
from talon_core.engine.ahead.place import parse_place
from talon_core.engine.ahead.process import ProcessWorker
from talon_core.engine.ahead.thread import ThreadWorker
from talon_core.engine.ahead.worker import Worker
from talon_core.engine.bounds import Bounds
from talon_core.engine.checked_drafter import opened
from talon_core.engine.engine import Engine
from talon_core.engine.generation import Batch, Generation
from talon_core.engine.sequence import Sequence as Decoded
from talon_core.errors import check_made_of, is_whole, naming
from talon_core.plugins.fitting import check_rule, exact_rules
from talon_core.plugins.parts import check_place, warn_of_unused
from talon_core.plugins.registry import load_registry
from talon_core.policy import TreePolicy
from talon_core.request import Request, Result
from talon_core.rule import AcceptanceRule, Lossless
from talon_core.schedule import Schedule
from talon_core.target import Target
from talon_core.tree import IntArray

if TYPE_CHECKING:
    from torch import Tensor

    from talon_core.frontend import Frontend

OnePrompt: TypeAlias = "str | list[dict[str, str]] | IntArray | Tensor"
"""Text, chat messages, or token ids of shape `(prompt,)`."""

STATEFUL = ("logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn")
"""Options of a user's own objects, of which each prompt of a list gets a copy."""


class Decoder:
    """Decodes with a target, a drafter, a tree policy and an acceptance rule; the output is the target's own.

    A decoder is made by `talon_core.load`. Any number of streams may be at different places of their texts at the same
    time. With a lossy rule the output is not the target's, and every result says so. With a plugin's parts it may be no
    more than claimed, see `lossless`.

    Args:
        target: the model whose output is wanted.
        rule: the acceptance rule.
        policy: the tree policy; None decodes one token per pass, without drafting.
        drafter: the drafter's options, or one that is opened for this target; needed with a policy. Without one it
            drafts nothing, and a warning says so.
        frontend: turns prompts and options into requests, and tokens into text.
        lossy: allow a rule that changes the law of the output.
        schedule: what is prepared while the target verifies; None drafts and verifies in turn.
        draft_on: where that is done, as for `load`.
        source: what the target's model was loaded by (`talon_core.decoding.source.Source`), for a drafter that needs it
            in another process; None where nobody knows.
        worker: makes who prepares in this process, for the drafter.
        bounds: how much is taken on at a time.
        costs: what passes take on this machine, as `Engine` takes them; measured while it decodes by default.
        now: the clock, in seconds.

    Raises:
        ValueError: if there is a policy but no drafter, the drafter does not fit the target, or the rule is not
            exact for the policy's trees, or is lossy where that is not allowed; if the drafter cannot draft before
            the target is done, where the schedule has it prepare something; or if there is a schedule without a policy,
            or a place to draft on without a schedule.
    """

    def __init__(
        self,
        target: Target,
        rule: AcceptanceRule,
        policy: TreePolicy | None = None,
        drafter: DrafterSpec | Drafter | None = None,
        frontend: "Frontend | None" = None,
        *,
        lossy: bool = False,
        schedule: Schedule | None = None,
        draft_on: str = DEFAULT_PLACE,
        source: Source | None = None,
        worker: Callable[[Drafter], Worker] = ThreadWorker,
        bounds: Bounds = Bounds(),  # noqa: B008 - it is frozen
        costs: Costs | None = None,
        now: Callable[[], float] = perf_counter,
    ) -> None:
        check_made_of(Bounds, "bounds", bounds)
        if policy is not None and drafter is None:
            raise ValueError(f"{naming('tree policy', policy)} needs a drafter, and there is none")
        check_place(draft_on, schedule)
        self.children = check_rule(rule, policy, lossy)
        if policy is None and drafter is not None:
            warn_of_unused(drafter)
        self.target = target
        self.rule = rule
        self.policy = policy
        self.schedule = schedule
        self.drafter_spec: DrafterSpec | None = None
        self.drafter: Drafter | None = None
        beside: ProcessWorker | None = None
        if policy is not None and drafter is not None:
            if isinstance(drafter, Drafter):
                self.drafter = drafter
            else:
                self.drafter_spec = drafter
            place = parse_place(draft_on) if schedule is not None and schedule.prepares else None
            if place is not None:
                beside = process_worker(drafter, target, place, source)
                self.drafter = beside.drafter
                worker = partial(_already, beside)
            elif self.drafter_spec is not None:
                self.drafter = opened(self.drafter_spec, target)
        self._frontend = frontend
        with ExitStack() as failed:
            if beside is not None:
                failed.callback(beside.close)
            self.engine = Engine(
                target,
                rule,
                policy,
                self.drafter,
                self.drafter_spec,
                **attrs.asdict(bounds),
                children=self.children,
                costs=costs,
                schedule=schedule,
                worker=worker,
                now=now,
            )
            failed.pop_all()

    @cached_property
    def lossless(self) -> Lossless:
        """Whether the output has the target's law: False with a lossy rule, "claimed" where a plugin says so alone."""
        return standing(self.rule, self.policy)

    @property
    def frontend(self) -> "Frontend":
        """What prepares requests.

        Raises:
            ValueError: if the decoder was made without one.
        """
        if self._frontend is None:
            raise ValueError("this decoder has no frontend: give it token ids through `run`, as a Request")
        return self._frontend

    def limit(self, request: Request) -> int:
        """Most new tokens of a request, which is checked before anything is decoded.

        Raises:
            ValueError: if the prompt is empty, leaves no room in the target's context, or has tokens outside the
                vocabulary; or the rule looks ahead and a logits processor remembers what it was called with.
        """
        check_made_of(Request, "the request", request)
        limit = request.limit(self.target)
        self._check_rule(request)
        return limit

    def _check_rule(self, request: Request) -> None:
        """Refuse a request that the rule cannot be asked for."""
        refused = self.engine.refused(request)
        if refused is not None:
            assert self.policy is not None  # without drafts there is nothing ahead
            others = ", ".join(exact_rules(load_registry(), self.policy, looking_ahead=False))
            raise ValueError(f"{refused}; take another rule instead: {others or 'none is registered'}")

    @overload
    def generate(self, prompt: OnePrompt, *, cancel: "Cancel | None" = ..., **options: Any) -> Result: ...

    @overload
    def generate(
        self, prompt: list[OnePrompt], *, batch_size: int = ..., cancel: "Cancel | None" = ..., **options: Any
    ) -> list[Result]: ...

    def generate(
        self,
        prompt: "OnePrompt | list[OnePrompt]",
        *,
        batch_size: int = BATCH_SIZE,
        cancel: "Cancel | None" = None,
        **options: Any,
    ) -> Result | list[Result]:
        """Decode a prompt, or a list of prompts, to the end.

        Sequences of a batch are verified together, each with its own tree; each comes out as it would alone. In half
        precision, where a product depends on how many rows there are, that is up to rounding.

        Args:
            prompt: text, chat messages, or token ids of shape `(prompt,)`; or a list of such.
            batch_size: of a list, how many are decoded at a time; when one is over, the next takes its place.
            cancel: a `threading.Event`: once it is set, by any thread, no further round is begun, and what is not at
                its end is "interrupted".
            options: `max_new_tokens`, `temperature`, `seed`, `raw` and every option of
                `transformers.GenerationConfig`; see `Frontend.request`. Of a list, the prompt of index `i` is decoded
                with the seed `seed + i` and with copies of the `logits_processor`, the `stopping_criteria` and the
                `prefix_allowed_tokens_fn`, and `max_time` counts from when its own decoding begins.

        Returns:
            The result, or a list of results in the order of the prompts.

        Raises:
            ValueError: for a bad prompt or option; nothing is decoded then.
            BusyError: if the model is being decoded at this moment, by another thread perhaps; or if a stream that is
                open holds the slots or rows that `bounds` allow.
        """
        if not is_whole(batch_size) or batch_size < 1:
            raise ValueError(f"batch_size is {batch_size!r}; it must be a whole number and at least 1")
        cancelled = _asking(cancel)
        if not is_batch(prompt):
            request = self.frontend.request(cast("OnePrompt", prompt), options)
            generation = self.run(request, cancelled=cancelled)
            generation.finish()
            return generation.result()
        requests = self.requests(cast("list[OnePrompt]", prompt), options)
        return _finished(self.batch(requests, batch_size, cancelled=cancelled))

    def requests(
        self, prompts: Sequence[OnePrompt], options: Mapping[str, Any], called: Sequence[str] | None = None
    ) -> list[Request]:
        """What is to be decoded for a list of prompts, with a seed of its own each.

        Args:
            prompts: as for `generate`.
            options: as for `generate`.
            called: how an error calls each prompt; by default by its number, where there are several.

        Raises:
            ValueError: for a bad prompt, which the sentence names, or a bad option.
        """
        seed = options.get("seed")
        requests = []
        for at, one in enumerate(prompts):
            own = {name: _own_copy(name, options[name], at) for name in STATEFUL if options.get(name) is not None}
            seeded = {"seed": int(seed) + at} if seed is not None and is_whole(seed) else {}
            given = {**options, **own, **seeded}
            try:
                requests.append(self.frontend.request(one, given))
            except ValueError as error:
                if not self._takes(given):
                    raise  # any prompt would be refused with these options
                raise _naming(error, at, len(prompts), called) from error
        return requests

    def _takes(self, options: Mapping[str, Any]) -> bool:
        """Whether a prompt of one token makes a request with these options."""
        try:
            self.frontend.request(np.zeros(1, dtype=np.int64), options)
        except ValueError:
            return False
        return True

    def stream(self, prompt: OnePrompt, *, cancel: "Cancel | None" = None, **options: Any) -> StreamedGeneration:
        """Decode a prompt, giving text as soon as it is accepted; options as for `generate`.

        The returned object is an iterator of `Chunk`s and a context manager, and its `result()` is there when it is
        exhausted. It may be left at any time; `close()` ends it from any thread.

        Raises:
            ValueError: for a bad prompt or option, or several prompts.
        """
        if is_batch(prompt) and len(prompt) == 1:
            prompt = cast("OnePrompt", prompt[0])
        elif is_batch(prompt):
            raise ValueError(
                f"a stream decodes one prompt, and got {len(prompt)}; make a stream of each, or call generate"
            )
        request = self.frontend.request(prompt, options)
        return StreamedGeneration(self.run(request, cancelled=_asking(cancel)), self.frontend)

    def run_all(self, requests: Sequence[Request]) -> list[Result]:
        """Decode prepared requests together, to the end of each."""
        return _finished(self.batch(requests, max(1, len(requests))))

    def batch(
        self,
        requests: Sequence[Request],
        size: int,
        choices: Sequence[Choices] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        called: Sequence[str] | None = None,
    ) -> Batch:
        """Prepared requests as a running generation, so many at a time; see `Batch`. `called` is as for `requests`."""
        for at, request in enumerate(requests):
            check_made_of(Request, "the request", request)
            try:
                request.limit(self.target)
                if self.engine.refused(request) is None:
                    self.engine.prepared(request)  # which asks for its rows of keys and values
            except ValueError as error:
                raise _naming(error, at, len(requests), called) from error
            self._check_rule(request)
        return Batch(self.engine, requests, size, self._result, choices, cancelled)

    def run(
        self, request: Request, choices: Choices | None = None, cancelled: Callable[[], bool] = lambda: False
    ) -> Generation:
        """Decode a prepared request; iterate over the result for its rounds.

        Args:
            request: what to decode.
            choices: the randomness of the rule and the policy; seeded from the request by default.
            cancelled: asked before each round; where it says True there are no more.
        """
        self.limit(request)
        return Generation(self.engine, request, self._result, choices, cancelled)

    def _result(self, sequence: Decoded) -> Result:
        return sequence.result(self._frontend, self.lossless)


def _already(worker: Worker, _: Drafter) -> Worker:
    """Who prepares, where the drafter is his."""
    return worker


class Cancel(Protocol):
    """What tells from another thread that no more is wanted: a `threading.Event` does."""

    def is_set(self) -> bool:
        """Whether it was cancelled."""
        ...


def _asking(cancel: Cancel | None) -> Callable[[], bool]:
    if cancel is None:
        return lambda: False
    if isinstance(cancel, type) or not callable(getattr(cancel, "is_set", None)):
        raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad option
            f"cancel is {cancel!r}; it must be a threading.Event, or have its method is_set"
        )
    return cancel.is_set


def _naming(error: ValueError, at: int, count: int, called: Sequence[str] | None) -> ValueError:
    """The error of one prompt, with what that is called; as it is where there is no other prompt.

    Args:
        error: what was raised.
        at: index of the prompt.
        count: how many there are.
        called: as for `Decoder.requests`.
    """
    if called is not None:
        return ValueError(f"{called[at]}: {error}")
    return ValueError(f"prompt {at + 1} of {count}: {error}") if count > 1 else error


def _own_copy(option: str, given: Any, row: int) -> Any:
    """An object of the user's for one prompt of a list; what keeps state must not be shared by sequences.

    `prefix_allowed_tokens_fn` is told the prompt's index, as it is for a batch of transformers.
    """
    try:
        own = copy.deepcopy(given)
    except Exception as error:
        raise ValueError(
            f"{option} cannot be copied, and each prompt of a list needs one of its own: {error}"
        ) from error
    if option == "prefix_allowed_tokens_fn" and callable(own):
        return lambda _row, ids: own(row, ids)
    return own


def _finished(generation: Batch) -> list[Result]:
    generation.finish()
    return generation.results()


def is_batch(prompt: Any) -> bool:
    """Whether it is a list of prompts; a list of chat messages or of token ids is one prompt."""
    if not isinstance(prompt, list | tuple) or not prompt:
        return False
    return all(isinstance(one, str) or (not isinstance(one, dict) and _several(one)) for one in prompt)


def _several(one: Any) -> bool:
    try:
        return len(np.shape(one)) > 0
    except ValueError:  # rows of unequal length, which are several as well
        return True
