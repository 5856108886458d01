"""What runs networks over draft trees, whoever wrote them. Nothing here imports transformers.

The target's adapter (`hf/`) stands on it, and so does any neural drafter:

- `network` is what a drafter sees of its target, and `embeddings` what both may use;
- `executor` runs passes, on a host or a device (`device`, `recording`);
- `modules` and `states` look into a network: what it is made of, and what its layers give;
- `blocks` are weights as GGUF files store them, and layers that hold such weights;
- `cache` holds keys and values, on a device in `pages`; `passes` is a pass as an attention layer sees it, and `inputs`
  what a network reads in it;
- `open_slots` is what a drafter keeps of each slot, and `staging` says which nodes of a growing tree are in its cache;
  `rows` keeps what passes read by its place, and `best` makes candidates out of scores (`scores`).

What a drafter's author needs of it can be imported from here by name; each is imported when it is first used.
"""

from typing import TYPE_CHECKING

from talon_core.basics.lazy import import_on_use

if TYPE_CHECKING:
    from talon_core.runtime.best import Best, Vocabulary, best_by, few_widths, last_rows, rows_at
    from talon_core.runtime.blocks import BlockEmbedding, BlockLinear, Blocks
    from talon_core.runtime.cache import KeyValueCache, TreeCache
    from talon_core.runtime.catching_up import timed_reading
    from talon_core.runtime.device import DeviceExecutor, executor_for
    from talon_core.runtime.embeddings import (
        embedding_shape,
        embedding_weight,
        like_output,
        output_rows,
        output_shape,
        output_weight,
        shared_embedding,
        shared_output,
        vocabulary_size,
    )
    from talon_core.runtime.executor import Executor, HostExecutor, Numbers, TreeView
    from talon_core.runtime.inputs import PassInputs, pass_inputs
    from talon_core.runtime.network import NetworkTarget, network_target
    from talon_core.runtime.open_slots import OpenSlots
    from talon_core.runtime.pages import PagedCache
    from talon_core.runtime.passes import Pass
    from talon_core.runtime.recording import Recorder
    from talon_core.runtime.row_sizes import in_rows_of, row_bytes
    from talon_core.runtime.rows import KeptRows
    from talon_core.runtime.running_on import OfRoots
    from talon_core.runtime.scores import best_numbers
    from talon_core.runtime.staging import StagedSlot

__all__ = [
    "Best",
    "BlockEmbedding",
    "BlockLinear",
    "Blocks",
    "DeviceExecutor",
    "Executor",
    "HostExecutor",
    "KeptRows",
    "KeyValueCache",
    "NetworkTarget",
    "Numbers",
    "OfRoots",
    "OpenSlots",
    "PagedCache",
    "Pass",
    "PassInputs",
    "Recorder",
    "StagedSlot",
    "TreeCache",
    "TreeView",
    "Vocabulary",
    "best_by",
    "best_numbers",
    "embedding_shape",
    "embedding_weight",
    "executor_for",
    "few_widths",
    "in_rows_of",
    "last_rows",
    "like_output",
    "network_target",
    "output_rows",
    "output_shape",
    "output_weight",
    "pass_inputs",
    "row_bytes",
    "rows_at",
    "shared_embedding",
    "shared_output",
    "timed_reading",
    "vocabulary_size",
]

import_on_use(
    __name__,
    {
        ".best": ["Best", "Vocabulary", "best_by", "few_widths", "last_rows", "rows_at"],
        ".blocks": ["BlockEmbedding", "BlockLinear", "Blocks"],
        ".cache": ["KeyValueCache", "TreeCache"],
        ".catching_up": ["timed_reading"],
        ".device": ["DeviceExecutor", "executor_for"],
        ".embeddings": [
            *("embedding_shape", "embedding_weight", "like_output", "output_rows", "output_shape", "output_weight"),
            *("shared_embedding", "shared_output", "vocabulary_size"),
        ],
        ".executor": ["Executor", "HostExecutor", "Numbers", "TreeView"],
        ".inputs": ["PassInputs", "pass_inputs"],
        ".network": ["NetworkTarget", "network_target"],
        ".open_slots": ["OpenSlots"],
        ".pages": ["PagedCache"],
        ".passes": ["Pass"],
        ".recording": ["Recorder"],
        ".row_sizes": ["in_rows_of", "row_bytes"],
        ".rows": ["KeptRows"],
        ".running_on": ["OfRoots"],
        ".scores": ["best_numbers"],
        ".staging": ["StagedSlot"],
    },
)
