"""Whether all ranks hold the same model. Checked before it is written down, since the checkpoint is rank 0's alone."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from laconic.comm import Communicator
from laconic.errors import CheckpointError
from laconic.ranks import name_ranks

# Machines of different kinds may round an optimizer's step differently; what is trained apart is far above.
_ALIKE = 1e-3


def check_same_weights(model: nn.Module, communicator: Communicator) -> None:
    """Raises CheckpointError on all ranks, naming the weight and the ranks, if they do not hold the same model.

    Traffic: an all_gather of 32 bytes, in phase "checkpoint"; the model of rank 0 only if something differs.
    """
    if communicator.num_ranks == 1:
        return
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    tensors = {name: tensor for name, tensor in named.items() if tensor.numel()}
    with communicator.ledger.phase("checkpoint"), torch.no_grad():
        digest = torch.tensor(list(_digest(tensors.values())), dtype=torch.uint8, device=communicator.transport.device)
        digests = communicator.all_gather(digest)
        if bool((digests == digests[0]).all()):
            return
        for name, tensor in tensors.items():
            apart = communicator.all_gather(_distance(tensor, communicator.broadcast(tensor, root=0)))
            ranks = [rank for rank, distance in enumerate(apart.flatten().tolist()) if not distance <= _ALIKE]
            if ranks:
                raise CheckpointError(
                    f"Ranks do not hold the same model any more: {name} differs on {name_ranks(ranks)} from rank 0, so "
                    f"no checkpoint is written. Something trains on some ranks only, or draws random numbers of its "
                    f"own: an optimizer, a hook, a line of the loop."
                )


def _digest(tensors: Iterable[Tensor]) -> bytes:
    digest = hashlib.sha256()
    for tensor in tensors:
        # As bytes: numpy does not know every type that weights may have.
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.digest()


def _distance(mine: Tensor, first: Tensor) -> Tensor:
    """Returns how far two tensors are apart, by the largest value of rank 0."""
    scale = first.double().abs().max().clamp(min=1.0)
    return ((mine.double() - first.double()).abs().max() / scale).reshape(1)
