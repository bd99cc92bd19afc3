"""LinearOperator: a fixed sparse matrix on a graph, as one Adjacency and a few vectors; GCN, mean and sum share it."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.graph.adjacency import Adjacency
from laconic.graph.threads import use_torch_threads
from laconic.kernels.balance import balanced_rows
from laconic.kernels.product import PREFETCH_DISTANCE, no_factor, sparse_product

FloatArray = NDArray[np.floating[Any]]

# Shapes: R rows, C columns, E edges, F features


@final
@dataclass(frozen=True, eq=False)
class LinearOperator:
    """The matrix M with M[i, j] = row_scale[i] * column_scale[j] * values[edge j -> i], plus a diagonal.

    Args:
        adjacency: the edges.
        values: factor per edge, in the adjacency's order, or None for 1.
        row_scale, column_scale: factor per destination and per source, or None for 1.
        diagonal: coefficient of a row's own features, or None for 0.
        skip_loops: leave out edges from a node to itself; the diagonal stands for them.
    """

    adjacency: Adjacency
    values: FloatArray | None = None
    row_scale: FloatArray | None = None
    column_scale: FloatArray | None = None
    diagonal: FloatArray | None = None
    skip_loops: bool = False

    @cached_property
    def transposed(self) -> "LinearOperator":
        """The transposed matrix, which the backward pass multiplies with."""
        across = self.adjacency.transposed
        values = None if self.values is None else self.values[across.edge_order]
        return LinearOperator(across, values, self.column_scale, self.row_scale, self.diagonal, self.skip_loops)

    def __matmul__(self, x: Tensor) -> Tensor:
        """Returns M x for rows x of shape (C, F), differentiable in x; (R, F)."""
        return _product(x, self)

    def multiply(self, x: Tensor, *, add_to: Tensor | None = None) -> Tensor:
        """Returns M x without recording it for autograd; or adds it to `add_to`, in place, and returns that."""
        # The kernel does not check what it reads.
        assert x.dim() == 2, f"{tuple(x.shape)} is not rows"
        assert x.shape[0] == self.adjacency.num_columns, f"{x.shape[0]} rows for {self.adjacency.num_columns} columns"
        if x.device.type != "cpu":
            product = self.as_torch(x.device, x.dtype) @ x
            return product if add_to is None else add_to.add_(product)
        if x.dtype not in (torch.float32, torch.float64):
            # Half precision: sums of many neighbours need more digits than it has.
            product = self.multiply(x.float())
            return product.to(x.dtype) if add_to is None else add_to.add_(product)
        assert add_to is None or self.diagonal is None, "the kernel starts a row with its diagonal"
        threads = use_torch_threads(self.adjacency.num_edges * x.shape[1])
        rows = x.detach().contiguous().numpy()
        out = torch.empty(self.adjacency.num_rows, x.shape[1], dtype=x.dtype) if add_to is None else add_to
        assert out.is_contiguous(), "the kernel writes whole rows"
        assert out.dtype == x.dtype, f"{x.dtype} cannot be added to {out.dtype}"
        values, row_scale, column_scale, diagonal = self._factors(rows.dtype)
        sparse_product(
            balanced_rows(self.adjacency.indptr, threads),
            self.adjacency.indptr,
            self.adjacency.indices,
            values,
            row_scale,
            column_scale,
            diagonal,
            self.skip_loops,
            rows,
            out.detach().numpy(),
            add_to is not None,
            PREFETCH_DISTANCE,
        )
        return out

    def as_torch(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Returns this matrix as a torch CSR tensor, kept for the next call."""
        kept = self._torch_matrices
        if (device, dtype) not in kept:
            kept[device, dtype] = _to_torch(self).to(device=device, dtype=dtype)
        return kept[device, dtype]

    @cached_property
    def _torch_matrices(self) -> dict[tuple[torch.device, torch.dtype], Tensor]:
        return {}

    @cached_property
    def _factors_by_dtype(self) -> dict[np.dtype[Any], tuple[FloatArray, ...]]:
        return {}

    def _factors(self, dtype: np.dtype[Any]) -> tuple[FloatArray, ...]:
        # Kept in float64 and cast once per dtype, so that float32 runs round each coefficient only once.
        if dtype not in self._factors_by_dtype:
            factors = (self.values, self.row_scale, self.column_scale, self.diagonal)
            self._factors_by_dtype[dtype] = tuple(
                no_factor(dtype) if factor is None else factor.astype(dtype, copy=False) for factor in factors
            )
        return self._factors_by_dtype[dtype]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, operator: LinearOperator) -> Tensor:
        ctx.operator = operator
        return operator.multiply(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        # Linear, so its gradient is a product again, and differentiable too.
        return ctx.operator.transposed @ grads[0], None


# Torch leaves `apply` untyped.
_product: Callable[..., Tensor] = _Product.apply


def _to_torch(operator: LinearOperator) -> Tensor:
    """Builds the CSR tensor in float64, with the diagonal as entries of its own."""
    adjacency = operator.adjacency
    rows, columns = adjacency.row_of_edge.astype(np.int64), adjacency.indices.astype(np.int64)
    entries = np.ones(adjacency.num_edges) if operator.values is None else operator.values.astype(np.float64)
    if operator.row_scale is not None:
        entries = entries * operator.row_scale[rows]
    if operator.column_scale is not None:
        entries = entries * operator.column_scale[columns]
    if operator.skip_loops:
        entries = np.where(rows == columns, 0.0, entries)
    if operator.diagonal is not None:
        own = np.arange(len(operator.diagonal))
        rows, columns = np.concatenate([rows, own]), np.concatenate([columns, own])
        entries = np.concatenate([entries, operator.diagonal])
    shape = (adjacency.num_rows, adjacency.num_columns)
    positions = torch.from_numpy(np.stack([rows, columns]))
    matrix = torch.sparse_coo_tensor(positions, torch.from_numpy(entries), shape, check_invariants=False)
    with warnings.catch_warnings():
        # Torch says once per process that its CSR tensors are new; the user did not ask for one.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return matrix.coalesce().to_sparse_csr()
