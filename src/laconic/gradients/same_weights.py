"""Whether all ranks hold the same model.

    check_same_weights(model, communicator)     # before a checkpoint, which is rank 0's alone

In training, `fingerprint` of the weights travels beside the gradients of every step
(`laconic.gradients.shared`).
"""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from laconic.comm.communicator import Communicator
from laconic.errors import RanksDifferError
from laconic.ranks import name_ranks

# Machines of different kinds may round an optimizer's step differently; what is trained apart is far above.
_ALIKE = 1e-3
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORD = (1 << 64) - 1

FINGERPRINT_BYTES = 16
"""Bytes of `fingerprint`."""


def check_same_weights(
    model: nn.Module, communicator: Communicator, *, phase: str = "checkpoint", consequence: str = ""
) -> None:
    """Raises RanksDifferError on all ranks if they do not hold the same model.

    The message names the weight and the ranks.

    Traffic: an all_gather of 32 bytes, in `phase`; the model of rank 0 only if something differs.

    Args:
        consequence: what does not happen then, for the message.
    """
    if communicator.num_ranks == 1:
        return
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with communicator.ledger.phase(phase), torch.no_grad():
        digest = torch.tensor(list(_digest(named.values())), dtype=torch.uint8, device=communicator.transport.device)
        digests = communicator.all_gather(digest)
        if not bool((digests == digests[0]).all()):
            refuse_different(named, communicator, consequence)


def refuse_different(tensors: dict[str, Tensor], communicator: Communicator, consequence: str = "") -> None:
    """Raises RanksDifferError on all ranks unless their tensors are rank 0's, but for rounding.

    Traffic: the tensors of rank 0, and 8 bytes from each rank for each of them.
    """
    for name, tensor in tensors.items():
        if not tensor.numel():
            continue
        apart = communicator.all_gather(_distance(tensor, communicator.broadcast(tensor, root=0)))
        ranks = [rank for rank, distance in enumerate(apart.flatten().tolist()) if not distance <= _ALIKE]
        if ranks:
            raise RanksDifferError(
                f"Ranks do not hold the same model any more: {name} differs on {name_ranks(ranks)} from rank 0"
                f"{consequence}. Something changes weights on some ranks only, or draws random numbers of its own: a "
                f"step of the optimizer that only some ranks take, an optimizer with noise, a hook, a line of the loop "
                f"that writes into a weight. Do on all ranks what is done on one."
            )


def fingerprint(tensors: Iterable[Tensor]) -> Tensor:
    """Returns bytes that tell whether all ranks hold the same tensors: `is_same` of their maximum.

    The bits of a tensor are added up as whole numbers: one pass over the weights, a fraction of an
    optimizer's step.
    """
    sums = [_as_integers(tensor.detach()).sum(dtype=torch.int64) for tensor in tensors]
    total = 0
    for value in torch.stack(sums).tolist() if sums else []:
        # In their order: a tensor that changes places with another is another model.
        total = (total * 0x100000001B3 + value) & _WORD
    word = torch.tensor(list(total.to_bytes(8, "little")), dtype=torch.uint8)
    # The largest of 255 - h is 255 less the smallest of h.
    return torch.cat([word, 255 - word])


def is_same(largest: Tensor) -> bool:
    """Whether all ranks have one fingerprint, by the maximum over ranks of each byte of it."""
    half = FINGERPRINT_BYTES // 2
    return bool((largest[:half] == 255 - largest[half:]).all())


def _as_integers(tensor: Tensor) -> Tensor:
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return plain.view(_INTEGERS[plain.itemsize])


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
