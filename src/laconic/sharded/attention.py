"""Attention where the in-edges of a node lie on several ranks: peaks and sums are over all of them.

For a row v with logits e[v, u], (E, H), of its in-edges, and m_v = max over u of e[v, u]:

    out_v = sum_u exp(e[v, u] - m_v) x_u / sum_u exp(e[v, u] - m_v)         (N, H, C)

Each rank sums over the edges that it has. Three things travel along k: the destinations' scores to
whoever has edges into them, the largest logit of a row, and numerator and denominator of the
quotient. For grids with pk > 1 and unsliced features. In torch's own operations, with a buffer of
edges times features.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from laconic.attach.aggregator import Attention
from laconic.comm.ledger import Ledger
from laconic.graph.operators.dropout import drop_edges
from laconic.sharded.placement import Placement
from laconic.sharded.position import Position
from laconic.sharded.steps import expand, fold

# Shapes: N own rows, R rows and S columns of the block, E its edges and own self-loops, H heads, C channels per head

# As in PyG's softmax.
_FLOOR = 1e-16


@final
@dataclass(frozen=True, eq=False)
class SplitAttention:
    """One attention layer on a block, at one position of a step."""

    placement: Placement
    settings: Attention
    ledger: Ledger
    position: Position

    def gat(self, x_SHC: Tensor, from_source_SH: Tensor, from_destination_NH: Tensor) -> Tensor:
        """Returns GAT's attention-weighted sum, (N, H, C)."""
        sources, rows = self._ends()
        from_destination_RH = self._for_rows(from_destination_NH)
        before_EH = from_source_SH.index_select(0, sources) + from_destination_RH.index_select(0, rows)
        return self._sum(x_SHC, leaky_relu(before_EH, self.settings.negative_slope), sources, rows)

    def gatv2(self, x_SHC: Tensor, destinations_NHC: Tensor, att_HC: Tensor) -> Tensor:
        """Returns GATv2's attention-weighted sum, (N, H, C)."""
        sources, rows = self._ends()
        destinations_RHC = self._for_rows(destinations_NHC)
        before_EHC = x_SHC.index_select(0, sources) + destinations_RHC.index_select(0, rows)
        logits_EH = (leaky_relu(before_EHC, self.settings.negative_slope) * att_HC).sum(dim=-1)
        return self._sum(x_SHC, logits_EH, sources, rows)

    def _ends(self) -> tuple[Tensor, Tensor]:
        operators = self.placement.block
        sources = torch.from_numpy(operators.adjacency.indices.astype(np.int64))
        rows = torch.from_numpy(operators.adjacency.row_of_edge.astype(np.int64))
        if self.settings.self_loops:
            own = torch.arange(operators.num_own)
            # Beyond the own block, equal numbers of a row and a column mean different nodes.
            kept = (sources != rows) | (rows >= operators.num_own)
            sources, rows = torch.cat([sources[kept], own]), torch.cat([rows[kept], own])
        return sources, rows

    def _for_rows(self, own: Tensor) -> Tensor:
        return expand(self.placement.rows, own, self.ledger, self.position)

    def _sum(self, x_SHC: Tensor, logits_EH: Tensor, sources: Tensor, rows: Tensor) -> Tensor:
        peak_RH = self._peaks(logits_EH.detach(), rows)
        weight_EH = (logits_EH - peak_RH.index_select(0, rows)).exp()
        kept_EH = weight_EH
        if self.settings.dropout > 0:
            ends = (self.placement.column_ids[sources], self.placement.row_ids[rows])
            kept_EH = drop_edges(weight_EH, self.settings.dropout, self.settings.key, *ends)
        values_EHC = kept_EH.unsqueeze(-1) * x_SHC.index_select(0, sources)
        # The sum of the weights travels as one more channel.
        partial = torch.cat([values_EHC, weight_EH.unsqueeze(-1)], dim=-1)
        num_rows = self.placement.block.adjacency.num_rows
        summed = partial.new_zeros(num_rows, *partial.shape[1:]).index_add(0, rows, partial)
        whole = fold(self.placement.rows, summed, self.ledger, self.position)
        return whole[..., :-1] / (whole[..., -1:] + _FLOOR)

    def _peaks(self, logits_EH: Tensor, rows: Tensor) -> Tensor:
        """Returns the largest score of every row over all ranks that have edges into it, (R, H)."""
        operators, axis = self.placement.block, self.placement.rows
        num_rows, width = operators.adjacency.num_rows, logits_EH.shape[1]
        peak = logits_EH.new_full((num_rows, width), -torch.inf)
        peak = peak.scatter_reduce(0, rows.unsqueeze(1).expand_as(logits_EH), logits_EH, "amax")
        own = peak[: operators.num_own].clone()
        with self.position.booked(self.ledger):
            axis.keep_largest(axis.start_fold(peak[operators.num_own :], width).wait(), own)
            return torch.cat([own, axis.start_expand(own, width).wait()])
