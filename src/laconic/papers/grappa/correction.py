"""Correction: what the losses of training rows count, given how much of their neighbourhoods a rank holds.

With c_v the coverage of row v (`coverage.py`), T_k the training rows of rank k and s the shrinkage:

    none     w_v = 1
    node     w_v = (1 - s) c_v + s
    batch    w_v = (1 - s) mean of c_u over T_k + s
    degree   w_v = 1; sums over held neighbours are divided by the degrees of the whole graph
    sweep    as degree, and edges count by how rarely they are held (`sweep.py`)
"""

from dataclasses import dataclass
from typing import Literal, final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from laconic.attach.fixed_operators import why_not_fixed
from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.papers.grappa.coverage import (
    NUM_BINS,
    CoverageSummary,
    auto_shrinkage,
    batch_coverage,
    node_coverage,
    shrink,
    summarise,
)
from laconic.papers.grappa.factors import COMBINATIONS, Combination, row_factors
from laconic.papers.grappa.view import View
from laconic.specs import unknown_name

CorrectionKind = Literal["none", "node", "batch", "degree", "sweep"]
CORRECTIONS: tuple[CorrectionKind, ...] = get_args(CorrectionKind)
# Shapes: T training rows of this rank, P ranks


@final
@dataclass(frozen=True)
class Correction:
    """How gradients of rows that miss neighbours are weighted.

    Args:
        kind: "none"; "node": each row by its coverage; "batch": all rows of a rank by their mean coverage; "degree",
            "sweep": no weight here, the sums over neighbours are corrected.
        num_hops: how many hops coverage looks.
        shrinkage: how far weights are drawn towards 1, from 0 to 1, or "auto".
        combination: of ranks, as in `factors`.
    """

    kind: CorrectionKind = "none"
    num_hops: int = 1
    shrinkage: float | Literal["auto"] = 0.0
    combination: Combination = "self_normalised"

    def __post_init__(self) -> None:
        if self.kind not in CORRECTIONS:
            raise ConfigError(unknown_name(self.kind, CORRECTIONS, family="correction"))
        if self.combination not in COMBINATIONS:
            raise ConfigError(unknown_name(self.combination, COMBINATIONS, family="combination"))
        if self.num_hops < 1:
            raise ConfigError(f"hops should be 1 or more; got {self.num_hops}.")
        is_number = isinstance(self.shrinkage, int | float) and not isinstance(self.shrinkage, bool)
        if self.shrinkage != "auto" and not (is_number and 0 <= float(self.shrinkage) <= 1):
            raise ConfigError(f"shrinkage should be a number from 0 to 1, or auto; got {self.shrinkage!r}.")

    @property
    def is_by_coverage(self) -> bool:
        return self.kind in ("node", "batch")

    @property
    def divides_by_degree(self) -> bool:
        """Whether sums over neighbours are divided by the degrees of the whole graph, not by the number held."""
        return self.kind in ("degree", "sweep")

    def check_model(self, model: nn.Module) -> None:
        """Raises UnsupportedModelError where edges have to be weighted, and a convolution has no fixed weights."""
        if not self.divides_by_degree:
            return
        for name, module in model.named_modules():
            reason = why_not_fixed(module) if isinstance(module, MessagePassing) else None
            if reason is not None:
                raise UnsupportedModelError(
                    f"{name or 'the model'} is a {type(module).__name__}, whose edges correction={self.kind} cannot "
                    f"weigh: {reason}. Use correction=node or batch, or the strategy gradient_only."
                )

    def apply(self, view: View, communicator: Communicator) -> tuple[Tensor, CoverageSummary]:
        """Returns the factor of each training row's loss, (T,), and the coverage of all ranks' training rows.

        All ranks call it together. Traffic: an all_gather of `gathered_bytes`.
        """
        rank = communicator.rank
        rows = view.shard.train_rows.numpy()
        coverage = node_coverage(view.shard.adjacency, view.degrees.counts, self.num_hops)[rows]
        own = summarise(coverage).parts(rank, communicator.num_ranks)
        parts = communicator.all_gather(torch.from_numpy(own)).numpy()
        counts, totals = parts[:, 0].round().astype(np.int64), parts[:, 1]
        weights = self._weights(coverage, counts, totals)
        sums = counts.astype(np.float64)
        if self.is_by_coverage:
            amount = self._amount(counts, totals)
            sums = (1.0 - amount) * totals + amount * counts
        factors = row_factors(
            weights,
            combination=self.combination,
            counts=counts,
            rank=rank,
            rank_totals=sums,
            rho=float(sums.sum() / max(counts.sum(), 1)),
        )
        return torch.from_numpy(factors), CoverageSummary.from_parts(parts.sum(0))

    @staticmethod
    def gathered_bytes(num_ranks: int) -> int:
        """Bytes that each rank gives to all in `apply`."""
        return 8 * (3 + NUM_BINS + num_ranks)

    def _weights(
        self, coverage: NDArray[np.float64], counts: NDArray[np.int64], totals: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        if not self.is_by_coverage:
            return np.ones(len(coverage))
        if self.kind == "batch":
            coverage = np.full(len(coverage), batch_coverage(coverage))
        return shrink(coverage, self._amount(counts, totals))

    def _amount(self, counts: NDArray[np.int64], totals: NDArray[np.float64]) -> float:
        if self.shrinkage == "auto":
            return auto_shrinkage(totals / np.maximum(counts, 1), counts)
        return float(self.shrinkage)
