"""Questions of compression.py: what VARCO's paper leaves open, on cora; SAGE as for accuracy, ranks are threads.

Which schedule? Four ranks, random parts, paired seeds: schedules of one codec and what needs none, each with its bytes
over those of full communication. `budget` gets a tenth of those.

A graph that changes? It begins with half of its links, and ten times a twentieth of them comes. The run goes on, or all
ranks begin anew on the graph as it is now; bytes of rows, gradients and set-up, over those of full communication that
goes on. Accuracy is that of the best validation after the last change, when the graph is whole.

Which rate to begin with? On 2, 4 and 8 ranks the paper's linear schedule from several first rates, that of our rule
among them.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from compression_accuracy import measure_all
from compression_training import (
    Numbers,
    graph_called,
    measure,
    models_for,
    new_optimizer,
    rows_and_gradients,
    start,
    step,
    strategy_of,
)
from harness import Benchmark, Target, console, difference, make_table
from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import Transport, run_ranks
from laconic.gradients.worker import Worker
from laconic.graph import Graph, GraphChange
from laconic.session.evaluate import Evaluation

FULL, OURS, FEEDBACK = "full", "ours", "feedback"
EPOCHS, NUM_RANKS, DROPOUT = 100, 4, 0.5
SUBSET, QUANTIZE = "codec=subset, schedule=", "codec=quantize, schedule="
LINEAR = f"{SUBSET}linear(slope=5.0, most={{rate}}, epochs={EPOCHS})"
SCHEDULES = {
    "constant 8": f"{SUBSET}constant(value=8.0)",
    "linear, slope 5": LINEAR.format(rate=64.0),
    "exponential": f"{SUBSET}exponential(most=64.0, epochs={EPOCHS})",
    "switch at 90": f"{SUBSET}switch(first=64.0, at=91)",
    "budget, a tenth": f"{SUBSET}budget(num_bytes={{budget}}, most=64.0, epochs={EPOCHS})",
    "adaptive": f"{SUBSET}adaptive(epochs={EPOCHS})",
    "quantize: budget, a tenth": f"{QUANTIZE}budget(num_bytes={{budget}}, most=16.0, epochs={EPOCHS})",
    "quantize: adaptive": f"{QUANTIZE}adaptive(epochs={EPOCHS})",
    "quantize, 2 bits, nearest": "codec=quantize(bits=2, stochastic=False)",
    FEEDBACK: FEEDBACK,
    OURS: OURS,
}
FIRST_RATES = {"rule": 0.0, "4": 4.0, "16": 16.0, "64": 64.0}
# Of codecs, those that remember have something to lose.
ANEW = "feedback, begun anew"
STREAM = (FULL, OURS, FEEDBACK, ANEW)
GOING_ON = "stream: points of feedback over begun anew, with an error"
STREAM_EPOCHS, NUM_CHANGES, CHANGED_EVERY = 130, 10, 10


@dataclass(frozen=True)
class Run:
    """One training run; `settings` are those of the strategy exchange, or a contender's name."""

    question: str
    contender: str
    settings: str
    seed: int
    num_ranks: int = NUM_RANKS
    epochs: int = EPOCHS

    @property
    def name(self) -> str:
        return f"{self.question}, {self.num_ranks} ranks, {self.contender}, {self.seed}"

    @property
    def work(self) -> int:
        return self.num_ranks * self.epochs

    def measure(self) -> Numbers:
        if self.question == "stream":
            return measure_stream(self.contender, self.seed, self.epochs)
        return measure("cora", self.num_ranks, "random", self.settings, self.seed, self.epochs, DROPOUT)


def targets(quick: bool) -> dict[str, Target]:
    """The page is there to tell; of a codec that remembers is asked that going on loses nothing to beginning anew."""
    return {GOING_ON: Target(-1.0 if not quick else -10.0)}


def run(benchmark: Benchmark) -> None:
    quick = benchmark.quick
    seeds = range(2 if quick else 3)
    epochs, stream_epochs = (20, 30) if quick else (EPOCHS, STREAM_EPOCHS)
    full = measure_all(benchmark, [Run("schedule", FULL, FULL, seed, epochs=epochs) for seed in seeds])
    budget = int(0.1 * next(iter(full.values()))["bytes"])
    schedules = {OURS: OURS} if quick else SCHEDULES
    runs = [
        Run("schedule", name, settings.format(budget=budget), seed, epochs=epochs)
        for name, settings in schedules.items()
        for seed in seeds
    ]
    runs += [Run("stream", way, way, seed, epochs=stream_epochs) for way in STREAM for seed in seeds]
    if not quick:
        linear = {name: LINEAR.format(rate=rate) for name, rate in FIRST_RATES.items()}
        runs += [
            Run("rate", name, settings, seed, num_ranks)
            for num_ranks in (2, 4, 8)
            for name, settings in {FULL: FULL, **linear}.items()
            for seed in seeds[:2]
        ]
    found = {**full, **measure_all(benchmark, runs)}
    of = {(one.question, one.num_ranks, one.contender, one.seed): numbers for one, numbers in found.items()}
    rows = [("schedule", NUM_RANKS, name) for name in (FULL, *schedules)]
    show(benchmark, "which schedule? cora, 4 ranks", of, rows, seeds)
    show(benchmark, "a graph that changes", of, [("stream", NUM_RANKS, way) for way in STREAM], seeds)
    if not quick:
        rows = [("rate", num_ranks, name) for num_ranks in (2, 4, 8) for name in (FULL, *FIRST_RATES)]
        show(benchmark, "which rate to begin with? cora, linear schedule", of, rows, seeds[:2])
    mean, error = difference(tests(of, FEEDBACK, seeds), tests(of, ANEW, seeds))
    benchmark.figures[GOING_ON] = mean - error
    benchmark.finish()


Found = Mapping[tuple[str, int, str, int], Numbers]


def tests(of: Found, way: str, seeds: Sequence[int]) -> list[float]:
    """Returns the accuracies of a way to follow a stream."""
    return [of["stream", NUM_RANKS, way, seed]["test"] for seed in seeds]


def show(
    benchmark: Benchmark,
    title: str,
    of: Found,
    rows: Sequence[tuple[str, int, str]],
    seeds: Sequence[int],
) -> None:
    table = make_table(title, "ranks", "contender", "accuracy", "minus full", "error", "bytes of full")
    for question, num_ranks, contender in rows:
        mine = [of[question, num_ranks, contender, seed] for seed in seeds]
        whole = [of[question, num_ranks, FULL, seed] for seed in seeds]
        mean, error = difference([one["test"] for one in mine], [one["test"] for one in whole])
        share = statistics.mean(one["bytes"] for one in mine) / statistics.mean(one["bytes"] for one in whole)
        name = f"{question}, {num_ranks} ranks, {contender}"
        benchmark.figures[f"{name}: minus full"] = mean
        benchmark.figures[f"{name}: bytes of full"] = share
        table.add_row(
            str(num_ranks),
            contender,
            f"{statistics.mean(one['test'] for one in mine):.2f}",
            f"{mean:+.2f}",
            f"{error:.2f}",
            f"{share:.1%}",
        )
    console.print(table)


def measure_stream(way: str, seed: int, epochs: int) -> Numbers:
    """Returns test accuracy on the whole graph, and all bytes but those of the model and of scores."""
    torch.set_num_threads(1)
    since = time.perf_counter()
    graph, models = graph_called("cora"), models_for(graph_called("cora"), NUM_RANKS, seed)
    shares = arriving(graph, seed)

    def on_rank(transport: Transport) -> tuple[int, float]:
        torch.set_num_threads(1)
        communicator = Communicator(transport, Ledger(transport.rank))
        return train_stream(way, graph, shares, models[transport.rank], communicator, seed, epochs)

    ranks = run_ranks(NUM_RANKS, on_rank, timeout=1800)
    return {
        "test": 100 * ranks[0][1],
        "bytes": sum(num_bytes for num_bytes, _ in ranks),
        "seconds": time.perf_counter() - since,
    }


def arriving(graph: Graph, seed: int) -> list[Tensor]:
    """Returns the edges that are there at first, and those of each change; a link comes both ways."""
    source, destination = graph.edge_index
    low, high = torch.minimum(source, destination), torch.maximum(source, destination)
    _, link = torch.unique(low * graph.num_nodes + high, return_inverse=True)
    when = np.random.default_rng(seed).random(int(link.max()) + 1)
    change = torch.from_numpy(np.maximum(0, np.ceil((when - 0.5) * 2 * NUM_CHANGES))).long()[link]
    return [graph.edge_index[:, change == number] for number in range(NUM_CHANGES + 1)]


def train_stream(
    way: str,
    graph: Graph,
    shares: Sequence[Tensor],
    model: nn.Module,
    communicator: Communicator,
    seed: int,
    epochs: int,
) -> tuple[int, float]:
    optimizer, settings = new_optimizer(model), strategy_of(FEEDBACK if way == ANEW else way, "random", epochs)
    every = CHANGED_EVERY * epochs // STREAM_EPOCHS
    num_changes, num_bytes, best = 0, 0, (-1.0, 0.0)

    def begin() -> Worker:
        present = replace(graph, edge_index=torch.cat(list(shares[: num_changes + 1]), dim=1))
        return start(settings, present, model, communicator, seed)

    worker = begin()
    evaluate = Evaluation("accuracy", worker.shard, communicator)
    for epoch in range(1, epochs + 1):
        if epoch > 1 and (epoch - 1) % every == 0 and num_changes < NUM_CHANGES:
            num_changes += 1
            if way == ANEW:
                worker.attachment.detach()
                worker = begin()
            else:
                worker.change(GraphChange(add_edges=graph.node_ids[shares[num_changes]]))
            evaluate = Evaluation("accuracy", worker.shard, communicator)
        step(worker, optimizer, epoch)
        num_bytes += rows_and_gradients(communicator.ledger, epoch, and_setup=True)
        if num_changes == NUM_CHANGES:
            scores = evaluate(model, worker.shard)
            communicator.ledger.take(epoch)
            best = max(best, (scores["val"], scores["test"]), key=lambda pair: pair[0])
    return num_bytes, best[1]
