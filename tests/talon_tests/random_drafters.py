"""Every drafter of ours for a tiny target, with a small random network or an index of random texts in a folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from talon_core.retrieval import IndexedVocabulary, Piece, write_index
from talon_drafters.eagle.network import EagleHead
from talon_tests.trained_heads import trainings

VOCAB = 3
DRAFTED = torch.tensor([0, 2])
"""The heads' draft vocabulary: what they cannot draft, the target says all the same."""

SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "vocab_size": VOCAB,
}
TRAINED = trainings(draft_vocab=2, steps=3)
NETWORKS = (*TRAINED, "eagle", "draft-model:skip=1", "conflayers")
DRAFTERS = (*NETWORKS, "ngram", "pld", "datastore", "hybrid", "lookahead")
"""Keys of `drafter_specs`."""


def random_target() -> Any:
    """A target in float64, whose laws are neither flat nor certain."""
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, num_hidden_layers=3, initializer_range=0.4, bos_token_id=0, eos_token_id=None)
    return LlamaForCausalLM(config).double().eval()


def drafter_specs(model: Any, root: Path) -> dict[str, str]:
    """A spec for each drafter, with random weights in folders where it needs some.

    Args:
        model: `random_target()`.
        root: where the folders are made.
    """
    torch.manual_seed(1)
    found = {"ngram": "ngram:least=0", "pld": "pld", "draft-model:skip=1": "draft-model:skip=1"}
    found["conflayers"] = "conflayers:context=4,every=3"
    found["lookahead"] = "lookahead:window=2,ngram=3,guesses=2"
    texts = np.random.default_rng(0).integers(0, VOCAB, (9, 7))
    write_index(root / "datastore", map(Piece, texts), IndexedVocabulary("random", VOCAB, ""), shard_tokens=29)
    found["datastore"] = f"datastore:path={root / 'datastore'},shortest=1,nodes=20"
    for name, training in TRAINED.items():
        head = training.make(model, DRAFTED).float()
        with torch.no_grad():
            for weight in head.parameters():
                weight.add_(0.2 * torch.randn_like(weight))
        training.export(head, DRAFTED, {}, root / name)
        found[name] = f"{training.options.name}:path={root / name}"
    eagle = EagleHead(LlamaConfig(**SIZES), 1, True, model.get_output_embeddings())
    (root / "eagle").mkdir()
    save_file(eagle.state_dict(), root / "eagle" / "model.safetensors")
    (root / "eagle" / "config.json").write_text(json.dumps(SIZES))
    found["eagle"] = f"eagle:path={root / 'eagle'}"
    found["hybrid"] = f"hybrid:of=eagle3[path={root / 'eagle3'}]+ngram,least=0"
    return found
