"""A target whose network a neural drafter may look into: what `DrafterSpec.open` is given for a real model."""

from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from talon_core.retrieval.index import tokenizer_hash
from talon_core.target import Target

if TYPE_CHECKING:
    from torch import nn

    from talon_core.attention import Accelerator
    from talon_core.runtime.chain_rounds import ChainRounds
    from talon_core.runtime.executor import Executor


class NetworkTarget(Target):
    """A target that is a network of PyTorch.

    `talon_core.runtime.embeddings` reads and shares its embedding and its LM head.

    Attributes:
        model: the network, a causal LM in the form of transformers: with `config`, `get_input_embeddings()` and
            `get_output_embeddings()`.
        accelerator: makes the network's own layers faster; None if nothing does.
        tokenizer: the model's tokenizer, which drafters compare theirs with; None if there is none.
        states: the hidden states that `read` and `verify` give as features, one after another, as
            `DrafterSpec.features` asked for them.
    """

    model: Any
    accelerator: "Accelerator | None"
    tokenizer: Any
    states: tuple[int, ...]

    @property
    def tokenizer_sha256(self) -> str | None:
        """Of the tokens of `tokenizer` that the network knows; None without one, or if it does not tell its tokens."""
        if getattr(self.tokenizer, "get_vocab", None) is None:
            return None
        try:
            return tokenizer_hash(self.tokenizer, self.vocab_size)
        except NotImplementedError:  # as transformers' base class says it for a tokenizer of a model's own code
            return None

    @abstractmethod
    def executor(self) -> "Executor":
        """A new executor for passes of the drafter's own: on the target's device, with its tree attention."""

    def chained(self, executor: "Executor") -> "ChainRounds | None":
        """What runs rounds ahead whose trees are chains, for a drafter with a network over the target's features.

        Args:
            executor: what `executor` has given, which runs the drafter's passes.

        Returns:
            None where nothing can, as by default.
        """
        return None

    @abstractmethod
    def own_executor(self) -> "Executor":
        """The executor of the target's own passes, with the keys and values of the committed texts in its cache.

        While a drafter is asked it may run layers of the target with it, which see these and stage rows behind them.
        They are given up before it answers (`KeyValueCache.committed`, 0 rows), and may be counted again when it is
        asked for more of the same tree (`KeyValueCache.restage`).
        """

    @abstractmethod
    def faster(self, *modules: "nn.Module") -> AbstractContextManager[object]:
        """A context in which modules of the drafter's own run as fast as the target's do; for `Drafter.session`.

        Where these modules, their hooks or their tensors were exchanged since it was entered the last time, what has
        been recorded of passes is given up.

        Of these modules, what is the target's own LM head is left alone: the target's session makes it faster.
        """


def network_target(target: Target, kind: str) -> NetworkTarget:
    """The target, if it is one whose network can be read.

    Args:
        target: what a drafter was opened for.
        kind: the drafter's name, for the message.

    Raises:
        ValueError: if it is not.
    """
    if not isinstance(target, NetworkTarget):
        raise ValueError(  # noqa: TRY004 - callers expect a ValueError from every drafter that does not fit
            f"drafter '{kind}' drafts for transformers models, not for a {type(target).__name__}"
        )
    return target
