"""All ranks begin with the same weights: W_r := W_0 for every rank r, by a broadcast of rank 0."""

import torch
from torch import nn

from laconic.comm.communicator import Communicator


def copy_from_first(model: nn.Module, communicator: Communicator) -> None:
    """Gives all ranks the parameters and buffers of rank 0."""
    with communicator.ledger.phase("setup"), torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.copy_(communicator.broadcast(tensor, root=0))
