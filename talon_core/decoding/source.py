"""What a model was loaded by, for a process beside that loads it, too."""

from collections.abc import Mapping
from typing import Any

import attrs

NOT_ELSEWHERE = frozenset(
    {
        *("dtype", "torch_dtype", "device_map", "max_memory", "offload_folder", "offload_buffers"),
        *("tp_plan", "tp_size", "device_mesh", "distributed_config", "force_download"),
    }
)
"""Options that a process beside is not given: it has a place of its own, loads the numbers in the format that they have
here, and finds the files fetched."""


def _elsewhere(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in NOT_ELSEWHERE}


@attrs.frozen
class Source:
    """What a model was loaded by.

    Attributes:
        name: as `load_model` takes it.
        options: likewise, such as `trust_remote_code` and `revision`; without those of `NOT_ELSEWHERE`.
    """

    name: str
    options: Mapping[str, Any] = attrs.field(factory=dict, converter=_elsewhere)
