"""Rows of all ranks in one place: for what is written down or compared, never for training."""

import json
from collections.abc import Mapping

import torch
from torch import Tensor

from laconic.comm.communicator import Communicator

_DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bfloat16)}


def gather_rows(communicator: Communicator, rows: Tensor, *, root: int | None = None) -> Tensor:
    """Returns the rows of all ranks, in rank order; with `root`, only that rank gets them, and others get none.

    Traffic: an all_gather of the numbers of rows, and the rows themselves.
    """
    num_ranks = communicator.num_ranks
    receivers = range(num_ranks) if root is None else [root]
    splits = communicator.agree_on_splits([len(rows) if rank in receivers else 0 for rank in range(num_ranks)])
    return communicator.all_to_all(rows.repeat(len(receivers), *[1] * (rows.dim() - 1)), splits)


def gather_texts(communicator: Communicator, text: str, *, root: int = 0) -> list[str]:
    """Returns the texts of all ranks on rank `root`, and nothing on others."""
    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
    gathered = gather_rows(communicator, data, root=root)
    sizes = communicator.all_gather(torch.tensor([len(data)])).flatten().tolist()
    if communicator.rank != root:
        return []
    pieces = torch.split(gathered, sizes)
    return [piece.cpu().numpy().tobytes().decode() for piece in pieces]


def gather_unequal_tensors(
    communicator: Communicator, tensors: Mapping[str, Tensor], *, root: int = 0
) -> list[dict[str, Tensor]]:
    """Returns the tensors of all ranks, whose names and shapes may differ, on rank `root`; nothing on others.

    Traffic: their names, types and shapes as text, and their bytes.
    """
    table = [(name, str(tensor.dtype), list(tensor.shape)) for name, tensor in tensors.items()]
    texts = gather_texts(communicator, json.dumps(table), root=root)
    none = torch.empty(0, dtype=torch.uint8)
    own = [tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in tensors.values()]
    data = gather_rows(communicator, torch.cat([none, *own]), root=root)
    found = []
    for text in texts:
        of_rank = {}
        for name, dtype, shape in json.loads(text):
            empty = torch.empty(shape, dtype=_DTYPES[dtype])
            part, data = data[: empty.nbytes], data[empty.nbytes :]
            empty.view(-1).view(torch.uint8).copy_(part)
            of_rank[name] = empty
        found.append(of_rank)
    return found


def gather_tensors(communicator: Communicator, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of all ranks by name, (P, *tensor.shape); all ranks give the same names and shapes.

    Traffic: an all_gather of each.
    """
    return {name: communicator.all_gather(tensor) for name, tensor in tensors.items()}
