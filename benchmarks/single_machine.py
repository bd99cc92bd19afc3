"""Training epochs on one machine: Laconic against PyG with an edge_index and PyG with a torch CSR adjacency.

    python benchmarks/single_machine.py            # about half an hour, resumes when stopped
    python benchmarks/single_machine.py --quick    # about a minute

Same weights, same losses (to 1e-5, of losses above 1 their share; checked in every cell), the whole step: forward,
loss, backward, Adam. Each contender is a process of its own, as its user would have it: PyG's without the settings that
`import laconic` makes for torch. They take turns, one at a time. "No memory" is Laconic without remembered input
aggregations, to show what they save. Memory is what an epoch adds to a process that holds torch, the graph and its
compressed edges, at its peak. PyG's GCN normalises the adjacency anew in every pass, as it does by default.
"""

import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE

from graphs import NUM_CLASSES, NUM_FEATURES, random_graph
from harness import OURS, PLAIN, Benchmark, Target, Worker, console, interleaved, make_table, serve, status_bytes
from laconic.attach import LocalAggregator, attach
from laconic.datasets import load, save_npz
from laconic.graph import Graph, Shard

WIDTH = 128
MODELS = {
    "GCN": lambda layers: GCN(NUM_FEATURES, WIDTH, layers, NUM_CLASSES),
    "SAGE": lambda layers: GraphSAGE(NUM_FEATURES, WIDTH, layers, NUM_CLASSES),
    "GIN": lambda layers: GIN(NUM_FEATURES, WIDTH, layers, NUM_CLASSES),
    "GAT": lambda layers: GAT(NUM_FEATURES, WIDTH, layers, NUM_CLASSES, heads=4),
}
# Name of a contender: how it runs, and the environment it runs in.
CONTENDERS = {
    "edge_index": ("edge_index", PLAIN),
    "csr": ("csr", PLAIN),
    "laconic": ("laconic", OURS),
    "no memory": ("no memory", OURS),
}
OVER_EDGE_INDEX = {"GCN": 8.0, "SAGE": 8.0, "GIN": 6.0, "GAT": 4.0}
SIZE = {True: (20_000, 30), False: (100_000, 30)}
REPEATS = 3
TURN_SECONDS = 2.0


def targets(quick: bool) -> dict[str, Target]:
    """Full: the worst over graphs and layers. Quick: a graph a fifth the size, whose rows partly stay in cache."""
    easier = 0.6 if quick else 1.0
    wanted = {f"{model} over edge_index": Target(bound * easier) for model, bound in OVER_EDGE_INDEX.items()}
    for model in MODELS:
        wanted[f"{model} over csr"] = Target(1.5 if not quick else 1.2)
    for model in ("GCN", "SAGE"):
        wanted[f"{model}-2 over csr"] = Target(1.8 if not quick else 1.2)
    wanted["memory over edge_index"] = Target(1 / 3, at_most=True)
    wanted["loss difference"] = Target(1e-5, at_most=True)
    return wanted


def csr_adjacency(graph: Graph) -> torch.Tensor:
    ones = torch.ones(graph.num_edges)
    size = (graph.num_nodes, graph.num_nodes)
    return torch.sparse_coo_tensor(graph.edge_index.flip(0), ones, size).coalesce().to_sparse_csr()


def stepper(kind: str, model: torch.nn.Module, graph: Graph) -> Callable[[], float]:
    """Returns a function that trains one epoch in the way `kind` and returns its loss."""
    edges = graph.edge_index
    if kind == "csr":
        edges = csr_adjacency(graph)
    elif kind in ("laconic", "no memory"):
        shard = Shard.whole(graph)
        attach(model, shard, aggregator=LocalAggregator(shard, remember_inputs=kind == "laconic"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(graph.x, edges), graph.y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def measure_epochs(graph_file: Path, model_name: str, layers: int, repeats: int) -> dict[str, float]:
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(_worker("--epochs-of", environment, kind, model_name, layers, graph_file))
            for name, (kind, environment) in CONTENDERS.items()
        }
        seconds = interleaved(workers, repeats, turn_seconds=TURN_SECONDS)
        # The first steps are compared: later on Adam amplifies rounding where a true gradient is zero.
        reference = workers["edge_index"].said[:2]
        differences = [
            abs(loss - expected) / max(1.0, abs(expected))
            for worker in workers.values()
            for loss, expected in zip(worker.said[:2], reference, strict=True)
        ]
    return {**seconds, "loss difference": float(np.max(differences))}  # np.max: a NaN comes through


def measure_memory(graph_file: Path, model_name: str) -> dict[str, float]:
    """Peak memory that two epochs add, in bytes."""
    peaks = {}
    for name in ("edge_index", "csr", "laconic"):
        kind, environment = CONTENDERS[name]
        with _worker("--memory-of", environment, kind, model_name, 2, graph_file) as worker:
            worker()
        peaks[name] = worker.said[0]
    return peaks


def _worker(
    what: str, environment: Mapping[str, str], kind: str, model_name: str, layers: int, graph_file: Path
) -> Worker:
    return Worker([sys.executable, __file__, what, kind, model_name, str(layers), str(graph_file)], environment)


def work(what: str, kind: str, model_name: str, layers: str, graph_file: str) -> None:
    """What a worker's process does."""
    graph = load(graph_file)
    torch.manual_seed(0)
    step = stepper(kind, MODELS[model_name](int(layers)), graph)

    def peak_of_two_steps() -> float:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = status_bytes("VmRSS")
        for _ in range(2):
            step()
        return status_bytes("VmHWM") - before

    serve(step if what == "--epochs-of" else peak_of_two_steps)


def main() -> None:
    benchmark = Benchmark.from_command_line(
        "single_machine", __doc__.splitlines()[0], {quick: targets(quick) for quick in (True, False)}
    )
    quick = benchmark.quick
    table = make_table(
        "seconds per epoch", "graph, model-layers", *CONTENDERS, "over edge_index", "over csr", "no memory: over csr"
    )
    worst: dict[str, float] = {}

    def note(name: str, value: float) -> None:
        worst[name] = min(worst.get(name, value), value)

    loss_differences: list[float] = []
    scratch = tempfile.TemporaryDirectory()
    files = {power_law: Path(scratch.name) / f"{power_law}.npz" for power_law in ((False,) if quick else (False, True))}
    for power_law, graph_file in files.items():
        graph = random_graph(*SIZE[quick], power_law=power_law)
        save_npz(graph, graph_file)
        for model_name in MODELS:
            for layers in (2,) if quick else (2, 3):
                cell = f"{graph.name}, {model_name}-{layers}"
                numbers = benchmark.cell(
                    cell, lambda f=graph_file, m=model_name, k=layers: measure_epochs(f, m, k, REPEATS)
                )
                over = {kind: numbers[kind] / numbers["laconic"] for kind in ("edge_index", "csr")}
                note(f"{model_name} over edge_index", over["edge_index"])
                note(f"{model_name} over csr", over["csr"])
                if layers == 2 and model_name in ("GCN", "SAGE"):
                    note(f"{model_name}-2 over csr", over["csr"])
                loss_differences.append(numbers["loss difference"])
                table.add_row(
                    cell,
                    *(f"{numbers[kind]:.3f}" for kind in CONTENDERS),
                    *(f"{ratio:.1f}x" for ratio in over.values()),
                    f"{numbers['csr'] / numbers['no memory']:.1f}x",
                )
    console.print(table)

    memory = make_table("memory that an epoch adds, MiB (2 layers)", "model", "edge_index", "csr", "laconic", "share")
    shares = []
    for model_name in MODELS if not quick else ("SAGE",):
        peaks = benchmark.cell(f"memory {model_name}", lambda m=model_name: measure_memory(files[False], m))
        shares.append(peaks["laconic"] / peaks["edge_index"])
        memory.add_row(model_name, *(f"{peak / 2**20:.0f}" for peak in peaks.values()), f"{shares[-1]:.2f}")
    console.print(memory)

    benchmark.figures.update(worst)
    benchmark.figures["memory over edge_index"] = max(shares)
    benchmark.figures["loss difference"] = float(np.max(loss_differences))
    benchmark.finish()


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*[Ss]parse.*")
    if sys.argv[1:2] in (["--epochs-of"], ["--memory-of"]):
        work(*sys.argv[1:])
    else:
        main()
