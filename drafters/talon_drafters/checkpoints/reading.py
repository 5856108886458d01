"""From a checkpoint's tensors to a module's: names, numbers and shapes, whatever the layout."""

import re
from collections.abc import Mapping

import attrs
from torch import Tensor, nn

from talon_core.runtime.embeddings import output_shape
from talon_core.runtime.network import NetworkTarget
from talon_drafters.checkpoints.files import Checkpoint


@attrs.frozen
class Sizes:
    """What a target asks of a drafter: the width of the states that enter its LM head, and how many tokens it has."""

    hidden: int
    vocab: int

    @classmethod
    def of(cls, target: NetworkTarget) -> "Sizes":
        """The sizes of a target."""
        return cls(output_shape(target.model)[1], target.vocab_size)


def renamed(checkpoint: Checkpoint, rules: Mapping[str, str], ignored: str, kind: str) -> dict[str, str]:
    """The file's name of each tensor, by its name in our modules.

    Args:
        checkpoint: the drafter's files.
        rules: regular expressions that match a whole name, and what they become, as `re.Match.expand` reads it.
        ignored: a regular expression for tensors that are not needed.
        kind: the drafter's, for messages.

    Raises:
        ValueError: if a name matches nothing, or two become the same.
    """
    names: dict[str, str] = {}
    for theirs in sorted(checkpoint.tensors):
        if re.fullmatch(ignored, theirs):
            continue
        found = next(((match, ours) for rule, ours in rules.items() if (match := re.fullmatch(rule, theirs))), None)
        if found is None:
            raise checkpoint.error(f"has a tensor {theirs}, which no known layout of {kind} heads has")
        name = found[0].expand(found[1])
        if name in names:
            raise checkpoint.error(f"has both {names[name]} and {theirs}, which are the same part of {kind} heads")
        names[name] = theirs
    return names


def counted(checkpoint: Checkpoint, numbers: set[int], what: str) -> int:
    """How many parts there are, if they are numbered from 0 without a gap.

    Args:
        checkpoint: the drafter's files.
        numbers: the numbers that were found.
        what: the part, with a place for its number.

    Raises:
        ValueError: if there are none, or one is missing.
    """
    if not numbers:
        raise checkpoint.error(f"has no {what.format(0)}")
    missing = sorted(set(range(max(numbers) + 1)) - numbers)
    if missing:
        raise checkpoint.error(f"has {what.format(max(numbers))} but no {what.format(missing[0])}")
    return len(numbers)


def layers_of_heads(checkpoint: Checkpoint, names: Mapping[str, str]) -> list[int]:
    """How many residual blocks each head has, counted from tensors `blocks.<head>.<block>.linear.weight`.

    Raises:
        ValueError: if a head or a block is missing.
    """
    blocks: dict[int, set[int]] = {}
    for name in names:
        if match := re.fullmatch(r"blocks\.(\d+)\.(\d+)\..*", name):
            blocks.setdefault(int(match[1]), set()).add(int(match[2]))
        elif match := re.fullmatch(r"outputs\.(\d+)\..*", name):
            blocks.setdefault(int(match[1]), set())
    heads = counted(checkpoint, set(blocks), "head {}")
    return [
        counted(checkpoint, blocks[head], f"block {{}} of head {head}") if blocks[head] else 0 for head in range(heads)
    ]


def fill(module: nn.Module, tensors: Mapping[str, Tensor], like: Tensor) -> None:
    """Give a module these tensors for its own, in the type of `like` and on its device, and make it ready to run."""
    placed = {name: tensor.to(like.device, like.dtype) for name, tensor in tensors.items()}
    module.load_state_dict(placed, assign=True)
    module.to(like.device)  # buffers that no file has, in their own type
    module.eval().requires_grad_(False)


def shaped(
    checkpoint: Checkpoint, names: Mapping[str, str], module: nn.Module, vocabulary: Tensor | None, vocab_size: int
) -> dict[str, Tensor]:
    """The tensors of a module by the module's names, each of the shape that the module asks for.

    Output matrices with a row for each of the target's tokens are cut to the drafter's vocabulary.

    Args:
        checkpoint: the drafter's files.
        names: as `renamed` gives them.
        module: what is to be filled; its own tensors may be on the `meta` device.
        vocabulary: the drafter's, shape `(draft vocab,)`, int64, or None.
        vocab_size: the target's.

    Raises:
        ValueError: if a tensor is missing, has another shape, or is one that other heads do not have.
    """
    wanted = module.state_dict()
    for name, theirs in names.items():
        if name not in wanted:
            raise checkpoint.error(f"has a tensor {theirs} whose like other heads do not have")
    tensors: dict[str, Tensor] = {}
    for name, own in wanted.items():
        if name not in names:
            raise checkpoint.error(f"lacks the tensor that would be {name} in TALON")
        theirs, shape = names[name], tuple(own.shape)
        given = checkpoint.tensor(theirs)
        if vocabulary is not None and name.startswith("outputs.") and given.shape[:1] == (vocab_size,):
            checkpoint.tensor(theirs, vocab_size, *shape[1:])
            tensors[name] = given[vocabulary]
        else:
            tensors[name] = checkpoint.tensor(theirs, *shape)
    return tensors
