"""Ids that are text, as rows of bytes: so that they are stored, cut and gathered like any other array.

decode_names(encode_names(names)) gives `names` back.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST_BYTES = 1024
"""Length of the longest id, in UTF-8."""

# Shapes: N nodes, B bytes of the longest id


def encode_names(names_N: NDArray[np.str_]) -> Tensor:
    """Returns each text in UTF-8, filled up with zeros, uint8 (N, B)."""
    encoded = np.char.encode(names_N, "utf-8")
    return torch.from_numpy(encoded.view(np.uint8).reshape(len(names_N), -1).copy())


def decode_names(rows_NB: Tensor) -> NDArray[np.str_]:
    """Returns the texts of rows of bytes, (N,)."""
    if not rows_NB.numel():
        return np.empty(0, np.str_)
    rows = np.ascontiguousarray(rows_NB.cpu().numpy())
    return np.char.decode(rows.view(f"S{rows.shape[1]}")[:, 0], "utf-8")
