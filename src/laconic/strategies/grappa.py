"""Grappa (arXiv 2602.01872): ranks train in isolation on the chunks that they hold, and exchange only gradients."""

from dataclasses import dataclass
from typing import Literal, final

from laconic.cached.intervals import Intervals
from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.gradients.reductions import parse_reduction
from laconic.graph import Graph
from laconic.papers.grappa.correction import Correction, CorrectionKind
from laconic.papers.grappa.factors import Combination
from laconic.papers.grappa.sweeping import SweepPlan, make_sweeper
from laconic.papers.grappa.worker import GrappaWorker
from laconic.sharded.block import BlockMap
from laconic.sharded.placement import place
from laconic.specs import unknown_name
from laconic.store import Store
from laconic.strategies._chunks import Chunks, chunks_of
from laconic.strategies._placed import PlacedRows
from laconic.strategies.base import ExpectedRun, Strategy


@final
@dataclass(frozen=True)
class Grappa(Strategy):
    """Ranks train on the chunks that they hold; neighbours beyond are missing, and losses corrected for it.

    Evaluation is exact. The paper's ablations: UW is correction=none, FP is schedule=fixed; 50S is
    gradient_only(remote=0.5), as edges from other ranks need rows of them.

    Args:
        repartition_every: epochs of a super-epoch: how long a rank goes on with the variable chunks that it holds.
        variable: chunks of other ranks that a rank holds beside its own, other ones in each super-epoch.
        chunks: into how many chunks a graph in memory is cut; one per rank by default. A store has its own number.
        partitioner: cuts a graph that does not come from a store.
        schedule: in which order variable chunks come: cyclic, random, affinity (most edges first), or fixed.
        rechunk_every: sweeps after which variable chunks are brought together in new, random groups; 0 never.
        correction: of gradients of nodes that miss neighbours: none; node or batch, by coverage; degree, sums are
            divided by the degrees of the whole graph; or sweep, edges are weighted too, such that their average over a
            sweep is exact.
        hops: how far coverage looks.
        shrinkage: how far coverage weights are drawn towards 1: a number from 0 to 1, or auto; by default 0.
        combination: of ranks: self_normalised (nodes count alike), mean (ranks count alike), or ht.
        supply: where variable chunks come from: storage that all ranks see, or peers; by default storage if it is seen.
        gradients: how gradients travel: exact, bf16, or powersgd(rank=2).
    """

    repartition_every: int = 30
    variable: int = 0
    chunks: int | None = None
    partitioner: str = "metis"
    schedule: str = "cyclic"
    rechunk_every: int = 0
    correction: CorrectionKind = "none"
    hops: int = 1
    shrinkage: float | Literal["auto"] | None = None
    combination: Combination = "self_normalised"
    supply: Literal["auto", "storage", "peers"] = "auto"
    gradients: str = "exact"

    def __post_init__(self) -> None:
        parse_reduction(self.gradients)
        _ = self.correction_of_losses
        if self.repartition_every < 1:
            raise ConfigError(f"repartition_every should be 1 or more epochs; got {self.repartition_every}.")
        if self.rechunk_every < 0:
            raise ConfigError(f"rechunk_every should be 0 (never) or more sweeps; got {self.rechunk_every}.")
        supplies = ("auto", "storage", "peers")
        if self.supply not in supplies:
            raise ConfigError(unknown_name(self.supply, supplies, family="supply"))

    @property
    def correction_of_losses(self) -> Correction:
        """How losses are corrected."""
        return Correction(self.correction, self.hops, self.shrinkage or 0.0, self.combination)

    @property
    def draws_batches(self) -> bool:
        # Sampled edges are neither weighted by how often they are held nor divided by the degrees of the whole graph.
        return not self.correction_of_losses.divides_by_degree

    def place(self, source: Graph | Store, communicator: Communicator, run: ExpectedRun) -> "PlacedChunks":
        chunks = chunks_of(source, communicator, partitioner=self.partitioner, num_chunks=self.chunks)
        placement = place(chunks.open, BlockMap.one_axis(chunks.chunk_map), communicator)
        plan = SweepPlan.of(
            chunks.chunk_map, communicator, self.variable, self.schedule, self.rechunk_every, chunks.open
        )
        return PlacedChunks(run=run, settings=self, placement=placement, chunks=chunks, plan=plan)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class PlacedChunks(PlacedRows):
    """The chunks that a rank owns, and the order in which others come."""

    settings: Grappa
    chunks: Chunks
    plan: SweepPlan

    def check(self) -> None:
        super().check()
        model = self.run.model
        self.settings.correction_of_losses.check_model(model)
        if any(getattr(module, "cached", False) for module in model.modules()):
            raise UnsupportedModelError(
                "A convolution with cached=True keeps what it saw first, but with the strategy grappa the rows that it "
                "sees change. Leave cached out: what can be remembered is remembered anyway."
            )

    def _start(self, seed: int) -> GrappaWorker:
        settings, chunks = self.settings, self.chunks
        # First: it may be refused, and then the model is left as it was.
        sweeper = make_sweeper(
            chunks.open,
            self.plan,
            chunks.chunk_map,
            self.placement,
            self.prepare,
            settings.supply,
            is_in_memory=chunks.are_in_memory,
        )
        return GrappaWorker(
            self.traces,
            self.placement,
            seed,
            reduction=parse_reduction(settings.gradients),
            super_epochs=Intervals(settings.repartition_every),
            correction=settings.correction_of_losses,
            plan=self.plan,
            sweeper=sweeper,
        )
