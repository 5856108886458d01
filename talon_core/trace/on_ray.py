"""Work on many things at once, on a cluster, through Ray."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from talon_core.basics.extras import library
from talon_core.errors import one_line
from talon_core.trace.processes import Executor, answered, dead, taken

AHEAD = 4
"""Things that are at the cluster, for each of its processors."""

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""What a Ray that is started here is told, where the user has not said it: to report nothing, and not to warn."""


def on_ray(address: str | None = None) -> Executor:
    """The `Executor` of a cluster. The work, the things and what comes of them can be pickled.

    Where a process dies, Ray gives the thing that it was at to another one, once.

    Args:
        address: of the cluster, as `ray.init` takes it. By default it is that of `$RAY_ADDRESS`, else the cluster that
            this machine belongs to; where there is none, Ray is started on this machine, and stopped after the work.

    Raises:
        ValueError: if Ray is not installed, or the cluster does not answer.
    """
    ray, ours = _connected(address)

    def run(work: Callable[[Any], Any], things: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        remote = ray.remote(num_cpus=1, max_retries=1)(answered)
        shared = ray.put(work)
        waiting, places = iter(range(len(things))), dict[Any, int]()
        most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))

        def send() -> None:
            while len(places) < most and (place := next(waiting, None)) is not None:
                places[remote.remote(shared, things[place])] = place

        try:
            send()
            while places:
                (answer, *_), _ = ray.wait([*places])
                place = places.pop(answer)
                try:
                    kind, found = ray.get(answer)
                except ray.exceptions.WorkerCrashedError:
                    raise ValueError(dead(things[place])) from None
                except ray.exceptions.RayError as error:
                    raise ValueError(f"Ray has failed at {things[place]}: {one_line(error)}") from error
                send()
                yield place, taken(kind, found)
        finally:
            for answer in places:
                ray.cancel(answer, force=True)
            if ours:
                ray.shutdown()

    return run


def _connected(address: str | None) -> tuple[Any, bool]:
    """Ray, and whether nobody had connected this process with a cluster before."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    ray = library("ray", "ray", "--ray")
    if ray.is_initialized():
        return ray, False
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ValueError(f"no cluster of Ray answers: {one_line(error)}; see 'ray status'") from None
    return ray, True
