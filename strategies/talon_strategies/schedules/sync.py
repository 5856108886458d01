"""The schedule `sync`: draft, then verify, then draft."""

from collections.abc import Sequence

import attrs

from talon_core.schedule import Outcome, Outlook, Schedule


@attrs.frozen
class Sync(Schedule):
    """Prepares nothing: the drafter waits for the target, and the target for the drafter."""

    name = "sync"
    purpose = "draft and verify in turn"
    prepares = False

    def outcomes(self, outlook: Outlook) -> Sequence[Outcome]:
        return ()
