"""Memory that is given up in another stream of a GPU than the one on which it was allocated."""

import torch
from torch import Tensor


def used_here(*tensors: Tensor) -> None:
    """Tell that the current stream uses these, before they are given up: it may still read them then.

    Memory goes back to the stream on which it was allocated, and what is allocated there next may take it at once. A
    drafter that prepares in a thread has a stream of its own, and gives up what was allocated on the target's.

    Args:
        tensors: on any device; on a CPU nothing is done.
    """
    for tensor in tensors:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
