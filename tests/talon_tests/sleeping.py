"""A worker that sleeps at random."""

import time
from collections.abc import Sequence
from random import Random

from talon_core.engine.ahead.preparing import Job
from talon_core.engine.ahead.thread import ThreadWorker
from talon_core.engine.ahead.worker import Stopped
from talon_core.schedule import Schedule


def sleeping(seed: int, longest: float) -> type[ThreadWorker]:
    """A worker in a thread that sleeps at random, up to so many seconds, before it begins and before it ends."""
    random = Random(seed)

    def sleep() -> None:
        time.sleep(random.choice([0.0, random.random() * longest]))

    class Sleeping(ThreadWorker):
        def prepare(self, schedule: Schedule, jobs: Sequence[Job]) -> None:
            sleep()
            super().prepare(schedule, jobs)

        def stop(self) -> Stopped:
            sleep()
            return super().stop()

    return Sleeping
