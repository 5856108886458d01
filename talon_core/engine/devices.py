"""Where a target's logits are, asked so that a target without tensors needs no torch."""

import sys
from typing import TYPE_CHECKING

from talon_core.target import Target

if TYPE_CHECKING:
    from torch import device


def device_of(target: Target) -> "device | None":
    """Where a target's logits are; None while nobody has imported torch, as all is on the host then."""
    return target.device if "torch" in sys.modules else None


def wait_for_target(target: Target) -> None:
    """Wait for what the device of a target does for this thread."""
    device = device_of(target)
    if device is not None:
        from talon_core.runtime.transfers import wait_for

        wait_for(device)
