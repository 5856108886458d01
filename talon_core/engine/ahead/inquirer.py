"""The same for drafters that ask the target beside their trees."""

from talon_core.engine.ahead.drafter import AheadDrafter
from talon_core.engine.ahead.instant import NO_INSTANT, NoInstant
from talon_core.engine.ahead.worker import Worker
from talon_core.inquiry import Inquirer, Inquiry
from talon_core.schedule import Schedule
from talon_core.tree import TokenTree


class AheadInquirer(AheadDrafter, Inquirer):
    """An `AheadDrafter` before an `Inquirer`: what it asks is passed on; arguments as there."""

    def __init__(
        self, schedule: Schedule, worker: Worker, named: object, vocab_size: int, instant: NoInstant = NO_INSTANT
    ) -> None:
        super().__init__(schedule, worker, named, vocab_size, instant)
        assert isinstance(self.behind, Inquirer)
        self._inquirer = self.behind
        self.most_added = self._inquirer.most_added

    def inquire(self, slot: int, tree: TokenTree, deepest: int) -> Inquiry | None:
        self._stop()
        return None if self._texts[slot].broken else self._inquirer.inquire(slot, tree, deepest)
