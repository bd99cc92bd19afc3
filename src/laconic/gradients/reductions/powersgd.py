"""powersgd: a gradient matrix travels as two thin factors; their error joins the next gradient.

Vogels, Karimireddy, Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
optimization", NeurIPS 2019, arXiv 1905.09727, algorithms 1 and 2: one power iteration per step that
begins where the last one ended (warm start), and error feedback. Each rank keeps its own error,
(I - P P') of its own gradient, so that what ranks do not have in common does not pile up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from laconic.comm.communicator import Communicator
from laconic.comm.gather import gather_tensors
from laconic.errors import ConfigError
from laconic.gradients.reductions._buckets import exact_means
from laconic.gradients.reductions._orthonormal import orthonormalise
from laconic.gradients.reductions.base import GradientReduction, Reducer

# Shapes: a gradient is (N, M); its factors are left (N, R) and right (M, R)

_SHORT_FLOATS = (torch.bfloat16, torch.float16)


@final
@dataclass(frozen=True, slots=True)
class PowerSgd(GradientReduction):
    """Sends matrices as factors of `rank` columns where that is less; all others as they are.

    A smaller rank: fewer bytes, and more of a gradient comes later. Beside the model it keeps one
    gradient (the error) and the right factors.

    Traffic: 2 (P - 1) rank (N + M) words for a matrix of (N, M), for all ranks together; in two
    all_reduces, of which the first takes the vectors along.

    Args:
        rank: columns of the factors.
    """

    rank: int = 2

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"powersgd: rank should be 1 or more, got {self.rank}.")

    def reducer(self, communicator: Communicator) -> "PowerSgdReducer":
        return PowerSgdReducer(communicator, self.rank)


@final
class PowerSgdReducer(Reducer):
    """The factors and errors of one model; `PowerSgd` makes it."""

    def __init__(self, communicator: Communicator, rank: int) -> None:
        self._communicator = communicator
        self._rank = rank
        # By name. The right factors are the same on all ranks, the errors each rank's own.
        self._right: dict[str, Tensor] = {}
        self.errors: dict[str, Tensor] = {}
        """What of this rank's gradients was not sent yet, as matrices."""

    def means(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self._communicator.num_ranks == 1:
            return {name: self._settled(name, gradient) for name, gradient in gradients.items()}
        matrices = {name: self._owed(name, gradient) for name, gradient in gradients.items() if self._pays(gradient)}
        others = {name: gradient for name, gradient in gradients.items() if name not in matrices}
        left, means = self._left_factors(matrices, others)
        right = self._right_factors(matrices, left)
        for name in matrices:
            means[name] = _product(left[name], right[name]).view(gradients[name].shape).to(gradients[name].dtype)
        return means

    def state(self) -> dict[str, Tensor]:
        """Returns the right factors, and the errors of all ranks, (P, N, M).

        Traffic: an all_gather of each error, in phase "checkpoint".
        """
        with self._communicator.ledger.phase("checkpoint"):
            errors = gather_tensors(self._communicator, self.errors)
        rights = {f"{name}.right": right.clone() for name, right in self._right.items()}
        return rights | {f"{name}.error": error for name, error in errors.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes back what `state` gave.

        Where there are more or fewer ranks now, each takes the mean of the errors.
        """
        right = {key.removesuffix(".right"): value for key, value in state.items() if key.endswith(".right")}
        errors = {key.removesuffix(".error"): value for key, value in state.items() if key.endswith(".error")}
        if right.keys() != errors.keys() or len(state) != 2 * len(right):
            raise ValueError(f"powersgd needs a right factor and an error for each matrix, got {', '.join(state)}")
        for name, factor in right.items():
            if factor.shape != (errors[name].shape[2], min(self._rank, *errors[name].shape[1:])):
                raise ValueError(
                    f"powersgd(rank={self._rank}) has no right factor of shape {tuple(factor.shape)} for {name}"
                )
        num_ranks, rank = self._communicator.num_ranks, self._communicator.rank
        self._right = {name: factor.clone() for name, factor in right.items()}
        self.errors = {
            name: (error[rank] if len(error) == num_ranks else error.mean(0)).clone() for name, error in errors.items()
        }

    def _pays(self, gradient: Tensor) -> bool:
        """Whether the factors of a gradient have fewer words than it has."""
        if gradient.dim() < 2 or not gradient.numel():
            return False
        num_rows, num_columns = gradient.flatten(1).shape
        return self._rank * (num_rows + num_columns) < num_rows * num_columns

    def _owed(self, name: str, gradient: Tensor) -> Tensor:
        """Returns a gradient as a matrix, with what was not sent of those before."""
        matrix = gradient.flatten(1)
        if matrix.dtype in _SHORT_FLOATS:
            matrix = matrix.float()
        if name in self.errors:
            return matrix + self.errors[name]
        self._right[name] = _first_factor(name, matrix, self._rank)
        return matrix

    def _settled(self, name: str, gradient: Tensor) -> Tensor:
        """Returns a gradient as it is, with what a run on more ranks may have left to send."""
        if name not in self.errors:
            return gradient
        del self._right[name]
        return (gradient.flatten(1) + self.errors.pop(name)).view(gradient.shape).to(gradient.dtype)

    def _left_factors(
        self, matrices: dict[str, Tensor], others: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Returns the orthonormal left factors, and the means of gradients sent with them."""
        products = [matrix @ self._right[name] for name, matrix in matrices.items()]
        means = exact_means(self._communicator, [*products, *others.values()])
        left = orthonormalise(means[: len(products)])
        return dict(zip(matrices, left, strict=True)), dict(zip(others, means[len(products) :], strict=True))

    def _right_factors(self, matrices: dict[str, Tensor], left: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the means of the right factors; remembers the error and the next start."""
        own = {name: matrix.T @ left[name] for name, matrix in matrices.items()}
        means = exact_means(self._communicator, list(own.values()))
        for name, matrix in matrices.items():
            self.errors[name] = torch.addmm(matrix, left[name], own[name].T, alpha=-1)
        for name, start in zip(matrices, orthonormalise(means), strict=True):
            # A direction in which nothing was left to send stays a direction to look in.
            self._right[name] = torch.where(start.any(0), start, self._right[name])
        return dict(zip(matrices, means, strict=True))


def _first_factor(name: str, matrix: Tensor, rank: int) -> Tensor:
    """Returns a random orthonormal right factor, a function of the parameter's name and shape."""
    num_columns = min(rank, *matrix.shape)
    rng = np.random.default_rng(list(name.encode()))
    values = torch.from_numpy(rng.standard_normal((matrix.shape[1], num_columns)))
    return orthonormalise([values.to(matrix)])[0]


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Returns left @ right.T, summed column by column: the same bits on every machine."""
    total = left[:, :1] * right[:, 0]
    for column in range(1, left.shape[1]):
        total += left[:, column : column + 1] * right[:, column]
    return total
