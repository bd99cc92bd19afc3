"""Grids of ranks: words against the published code's, epochs on four hosts of the lab against their bound, and auto.

    sudo python benchmarks/grids.py             # some ten minutes, resumes when stopped
    sudo python benchmarks/grids.py --quick     # about a minute

Words: a graph of the shape that the code of CAGNET (PASSIONLab/CAGNET, SC'20) was counted on: 50,000 nodes, 1.05
million entries, a GCN of two layers, 128-64-16. "Same products" are the four of its epoch (A times 128 and 64 wide
rows forward, 64 and 16 backward), dense, in words that a rank receives. "As trained" is what an epoch of ours moves
with exchange=dense: aggregated features are kept, and products run on the narrower side of a layer.
The published code's words were counted by its own collectives on four ranks (eight for 3D): received are all broadcasts
but a rank's own, and 2 (p - 1) / p of an all-reduce.

Memory: what the busiest rank holds of edges, scales, lists, features and their aggregate, counted array by array, over
what the plan says (laconic.sharded.plan).

Epochs: a GCN of 3 layers, 256 wide, on four hosts, one thread each; all grids in one run, taking turns.
The bound is that of exchange.py: compute + wire - what runs between the start of an exchange and the
wait for it. The wire is payload at the link's rate. What an all-to-all by itself takes of that on these
hosts is shown beside it (wire_rank.py). On eight hosts, which two cores cannot time, the same for bytes:
what each rank's ledger counted against what was predicted.
"""

import statistics
import sys
from collections.abc import Iterable, Mapping

import torch
from torch_geometric.nn import GCN

from exchange import NUM_HOSTS, read_findings, stored
from exchange_bound import bound_of
from graphs import random_graph
from grids_rank import __file__ as RANK_PROGRAM
from harness import Benchmark, Target, console, make_table
from held import bytes_within
from laconic.attach.aggregator import Linear
from laconic.comm import Communicator, Ledger, run_ranks
from laconic.comm.grid import Grid, parse_grid
from laconic.graph import Graph
from laconic.lab import Lab, check_requirements, parse_link
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.plan import held_bytes
from laconic.strategies import parse_strategy
from laconic.strategies.base import ExpectedRun
from wire_rank import __file__ as WIRE_PROGRAM

LINKS = ("1gbit", "100mbit")
PRESETS = ("1d", "1d_columns", "1.5d(c=2)", "2d", "grid(pi=2, pj=2)", "feature")
# Enough turns that a noisy moment does not decide; few where an epoch takes eight seconds.
NUM_EPOCHS = {"1gbit": 9, "100mbit": 4}
NUM_EPOCHS_QUICK = 2
# Megabytes of an all-to-all, as large as those of a grid's products here.
WIRE_MEGABYTES = 4.5
GRAPHS = {True: ("small",), False: ("medium",)}
MANY_HOSTS = 8
PRESETS_OF_MANY = ("1d", "1.5d(c=2)", "1.5d_replicated(c=2)", "3d", "feature")
PARTITIONS = ("random", "metis")

# Payload words of a rank and epoch as counted in the published code: (ranks, broadcast, all-reduced).
PUBLISHED = {
    "1d": (4, 13.60e6, 0.0),
    "1.5d(c=2)": (4, 6.80e6, 6.81e6),
    "2d": (4, 26.7e6, 0.0),
    "3d": (8, 13.2e6, 10.2e6),
}
# Layouts as published, and which of the published codes they are.
AS_PUBLISHED = {"1.5d_replicated(c=2)": "1.5d(c=2)", "2d_summa": "2d"}
SHAPE = {"num_nodes": 50_000, "mean_degree": 21}
WIDTHS = (128, 64, 16)


def received_by_published(preset: str) -> float:
    """Words received: of a broadcast among p ranks one in p is the root; the p of each preset is its line's."""
    num_ranks, broadcast, reduced = PUBLISHED[AS_PUBLISHED.get(preset, preset)]
    preset = AS_PUBLISHED.get(preset, preset)
    line = {"1d": num_ranks, "1.5d(c=2)": 2, "2d": 2, "3d": 2}[preset]
    return broadcast * (line - 1) / line + reduced * 2 * (line - 1) / line


def place(text: str, graph: Graph, transport, ledger: Ledger, model: torch.nn.Module | None = None):
    """What a rank holds; products are counted without a model."""
    run = ExpectedRun(model or torch.nn.Identity())
    return parse_strategy(text).place(graph, Communicator(transport, ledger), run)


def words_of_products(graph: Graph, grid: Grid | str, num_ranks: int, *, exchange: str) -> float:
    """Words that a rank receives (mean) in the four products of the published code's epoch."""

    def run(transport):
        ledger = Ledger(transport.rank)
        placed = place(f'full_graph(grid="{grid}", exchange={exchange}, partitioner=random)', graph, transport, ledger)
        shard, aggregator = placed.shard, ShardedAggregator(placed.placement)
        aggregator.begin(is_training=True)
        aggregator.linear(Linear("gcn"), torch.zeros(shard.num_rows, WIDTHS[-1]))
        ledger.take(0)
        # One product forward and one backward are as many words each way.
        for width, has_gradient in ((WIDTHS[0], False), (WIDTHS[1], True), (WIDTHS[2], False)):
            rows = torch.zeros(shard.num_rows, width, requires_grad=has_gradient)
            out = aggregator.linear(Linear("gcn"), rows)
            if has_gradient:
                out.sum().backward()
        return received(ledger)

    return statistics.mean(run_ranks(num_ranks, run, timeout=300))


def words_of_epoch(graph: Graph, grid: str, num_ranks: int, *, exchange: str) -> float:
    """Words of aggregation that a rank receives (mean) in an epoch of the same model, by prediction."""
    models = [GCN(WIDTHS[0], WIDTHS[1], 2, WIDTHS[2]) for _ in range(num_ranks)]

    def run(transport):
        text = f'full_graph(grid="{grid}", exchange={exchange}, partitioner=random)'
        placed = place(text, graph, transport, Ledger(transport.rank), models[transport.rank])
        predicted = placed.start(seed=0).predict_traffic()
        rows = [row for row in predicted if row.epoch == 1 and row.phase != "evaluation"]
        return sum(r.num_bytes for r in rows if r.direction == "received" and r.operation == "all_to_all") / 4

    return statistics.mean(run_ranks(num_ranks, run, timeout=300))


def received(ledger: Ledger) -> float:
    return sum(row.num_bytes for row in ledger.take(0) if row.direction == "received") / 4


def measure_words(preset: str, graph: Graph) -> dict[str, float]:
    num_ranks = PUBLISHED[AS_PUBLISHED.get(preset, preset)][0]
    return {
        "published": received_by_published(preset),
        "same products": words_of_products(graph, preset, num_ranks, exchange="dense"),
        "as trained": words_of_epoch(graph, preset, num_ranks, exchange="dense"),
        "as trained, sparse": words_of_epoch(graph, preset, num_ranks, exchange="sparse"),
    }


def measure_memory(graph: Graph, preset: str) -> dict[str, float]:
    """Bytes that the busiest of four ranks holds when it has trained, and what the plan says."""
    width = graph.x.shape[1]
    grid = parse_grid(preset).of(NUM_HOSTS)

    def run(transport):
        ledger = Ledger(transport.rank)
        placed = place(f'full_graph(grid="{preset}", partitioner=random)', graph, transport, ledger)
        aggregator = ShardedAggregator(placed.placement)
        aggregator.begin(is_training=True)
        aggregator.linear(Linear("gcn"), placed.shard.x)
        rows = torch.ones(placed.shard.num_rows, width, requires_grad=True)
        aggregator.linear(Linear("gcn"), rows).sum().backward()
        del rows
        # A plan weighs one axis by its cover, unless it is told otherwise.
        edges = ", edges=destination" if grid.pi == NUM_HOSTS else ""
        auto = place(f"full_graph(partitioner=random{edges})", graph, transport, ledger)
        sizes = next(each.sizes for each in auto.plan.candidates if each.grid == grid)
        return bytes_within(aggregator), held_bytes(sizes, width, graph.x.itemsize)

    found = run_ranks(NUM_HOSTS, run, timeout=300)
    return {"held": max(held for held, _ in found), "planned": found[0][1]}


def measure_sixteen() -> dict[str, float]:
    """The same products on sixteen ranks, over those of 1d; a smaller graph gives the same shares."""
    graph = random_graph(3200, 10, power_law=False)
    one_axis = words_of_products(graph, Grid(16, 1, 1), 16, exchange="dense")
    shares = {
        name: words_of_products(graph, grid, 16, exchange="dense") / one_axis
        for name, grid in {"2d": Grid(4, 4, 1), "2 x 2 x 4": Grid(2, 2, 4), "feature": Grid(1, 1, 16)}.items()
    }
    return {
        **{f"{name} of 16 over 1d": share for name, share in shares.items()},
        "best grid of 16 over 1d": min(shares.values()),
    }


def strategy_of(preset: str, link: str) -> str:
    if preset == "auto":
        return f"full_graph(link_mbit={parse_link(link) // 10**6})"
    return f'full_graph(grid="{preset}")'


def run_hosts(graph: str, partition: str, link: str, num_epochs: int, num_hosts: int, texts: Iterable[str]) -> dict:
    folder = stored(graph, partition, num_hosts)
    command = [sys.executable, RANK_PROGRAM, str(folder), "gcn", str(num_epochs), *texts]
    with Lab(hosts=num_hosts, link=link) as lab:
        return read_findings(lab.run(command, environment={"OMP_NUM_THREADS": "1"}, capture=True))


def measure_many_hosts() -> dict[str, float]:
    """Megabytes that a host receives in an epoch (mean), and in how many rows ledger and prediction differ."""
    texts = {preset: strategy_of(preset, LINKS[0]) for preset in (*PRESETS_OF_MANY, "auto")}
    found = run_hosts("small", "random", LINKS[0], 1, MANY_HOSTS, texts.values())
    numbers: dict[str, float] = {"not as predicted": 0}
    for preset, text in texts.items():
        numbers[preset] = statistics.mean(host["of epoch"]["received"] for host in found[text]) / 1e6
        numbers["not as predicted"] += sum(host["num_wrong"] for host in found[text])
    return numbers


def measure_epochs(graph: str, partition: str, link: str, num_epochs: int) -> dict[str, float]:
    texts = {preset: strategy_of(preset, link) for preset in (*PRESETS, "auto")}
    found = run_hosts(graph, partition, link, num_epochs, NUM_HOSTS, texts.values())
    numbers: dict[str, float] = {"not as predicted": 0}
    for preset, text in texts.items():
        hosts = found[text]
        epoch = statistics.median(map(max, zip(*(host["epochs"] for host in hosts), strict=True)))
        numbers[f"{preset}: epoch"] = epoch
        numbers[f"{preset}: bound"] = max(bound_of(host, parse_link(link))["bound"] for host in hosts)
        numbers[f"{preset}: bytes"] = statistics.mean(host["of epoch"]["received"] for host in hosts)
        numbers["not as predicted"] += sum(host["num_wrong"] for host in hosts)
        if preset == "auto":
            numbers |= {f"auto {axis}": size for axis, size in axes_of(hosts[0]["chosen"]).items()}
    return numbers


def measure_wire(link: str) -> dict[str, float]:
    """Returns what an all-to-all alone takes, over its payload at the link's rate."""
    command = [sys.executable, WIRE_PROGRAM, str(parse_link(link) // 10**6), str(WIRE_MEGABYTES)]
    with Lab(hosts=NUM_HOSTS, link=link) as lab:
        return {"over payload": read_findings(lab.run(command, capture=True))}


def axes_of(grid: str) -> dict[str, int]:
    return {part.split("=")[0]: int(part.split("=")[1]) for part in grid[len("grid(") : -1].split(", ")}


def cells(quick: bool) -> list[tuple[str, str, str]]:
    links = LINKS[1:] if quick else LINKS
    return [(graph, parts, link) for graph in GRAPHS[quick] for parts in PARTITIONS for link in links]


def targets(quick: bool) -> dict[str, Target]:
    wanted = {
        "rows not as predicted": Target(0, at_most=True),
        "2d: words of the same products over published": Target(0.52, at_most=True),
        "2d: words as trained over published": Target(0.1, at_most=True),
        "2d of 16 over 1d": Target(0.4, at_most=True),
        "best grid of 16 over 1d": Target(0.4, at_most=True),
        "1.5d_replicated(c=2): words of the same products over published": Target(1.001, at_most=True),
        "memory: furthest from the plan": Target(0.2, at_most=True),
    }
    for graph, parts, link in cells(quick):
        wanted[f"{graph}, {parts}, {link}: auto over the fastest"] = Target(1.1, at_most=True)
        for preset in PRESETS:
            wanted[f"{graph}, {parts}, {link}, {preset}: over bound"] = Target(1.2 if not quick else 1.4, at_most=True)
    return wanted


def show_words(benchmark: Benchmark) -> None:
    table = make_table(
        "words that a rank receives in an epoch, in millions: 50k nodes, 1.05M entries, 128-64-16",
        "preset (ranks)",
        "published",
        "same products",
        "share",
        "as trained",
        "share",
        "sparse",
    )
    graph = random_graph(**SHAPE, power_law=False)
    for preset in (*PUBLISHED, *AS_PUBLISHED):
        numbers = benchmark.cell(f"words, {preset}", lambda p=preset: measure_words(p, graph))
        same, trained = (numbers[name] / numbers["published"] for name in ("same products", "as trained"))
        benchmark.figures[f"{preset}: words of the same products over published"] = same
        benchmark.figures[f"{preset}: words as trained over published"] = trained
        table.add_row(
            f"{preset} ({PUBLISHED[AS_PUBLISHED.get(preset, preset)][0]})",
            f"{numbers['published'] / 1e6:.2f}",
            f"{numbers['same products'] / 1e6:.2f}",
            f"{same:.2f}",
            f"{numbers['as trained'] / 1e6:.2f}",
            f"{trained:.3f}",
            f"{numbers['as trained, sparse'] / 1e6:.2f}",
        )
    console.print(table)
    benchmark.figures |= benchmark.cell("words, 16 ranks", measure_sixteen)


def show_memory(benchmark: Benchmark) -> None:
    table = make_table(
        "megabytes that the busiest of four ranks holds: the same graph", "grid", "held", "planned", "of it"
    )
    graph = random_graph(**SHAPE, power_law=False)
    shares = []
    for preset in PRESETS:
        numbers = benchmark.cell(f"memory, {preset}", lambda p=preset: measure_memory(graph, p))
        shares.append(numbers["held"] / numbers["planned"])
        table.add_row(preset, f"{numbers['held'] / 1e6:.1f}", f"{numbers['planned'] / 1e6:.1f}", f"{shares[-1]:.2f}")
    benchmark.figures["memory: furthest from the plan"] = max(abs(share - 1) for share in shares)
    console.print(table)


def show_many_hosts(benchmark: Benchmark) -> float:
    numbers = benchmark.cell("eight hosts", measure_many_hosts)
    table = make_table("small, random parts, eight hosts: megabytes that a host receives in an epoch", "grid", "MB")
    for preset in (*PRESETS_OF_MANY, "auto"):
        table.add_row(preset, f"{numbers[preset]:.2f}")
    console.print(table)
    return numbers["not as predicted"]


def show_epochs(benchmark: Benchmark, graph: str, parts: str, link: str, numbers: Mapping[str, float]) -> None:
    table = make_table(
        f"{graph}, {parts} parts, {link}: four hosts of one thread",
        "grid",
        "s per epoch",
        "bound",
        "over",
        "MB received",
    )
    fastest = min(numbers[f"{preset}: epoch"] for preset in PRESETS)
    for preset in (*PRESETS, "auto"):
        epoch, bound = numbers[f"{preset}: epoch"], numbers[f"{preset}: bound"]
        name = (
            preset
            if preset != "auto"
            else "auto " + "x".join(f"{numbers[f'auto {a}']:.0f}" for a in ("pi", "pk", "pj"))
        )
        megabytes = numbers[f"{preset}: bytes"] / 1e6
        table.add_row(name, f"{epoch:.2f}", f"{bound:.2f}", f"{epoch / bound:.2f}x", f"{megabytes:.1f}")
        if preset != "auto":
            benchmark.figures[f"{graph}, {parts}, {link}, {preset}: over bound"] = epoch / bound
    benchmark.figures[f"{graph}, {parts}, {link}: auto over the fastest"] = numbers["auto: epoch"] / fastest
    console.print(table)


def main() -> None:
    benchmark = Benchmark.from_command_line(
        "grids", "Training on grids of ranks.", {quick: targets(quick) for quick in (True, False)}
    )
    check_requirements()
    show_words(benchmark)
    show_memory(benchmark)
    wrong = show_many_hosts(benchmark)
    for link in LINKS:
        taken = benchmark.cell(f"wire, {link}", lambda k=link: measure_wire(k))["over payload"]
        benchmark.figures[f"{link}: an all-to-all alone over its payload"] = taken
        console.print(f"{link}: an all-to-all alone takes {taken:.2f}x its payload at the link's rate")
    num_epochs = dict.fromkeys(LINKS, NUM_EPOCHS_QUICK) if benchmark.quick else NUM_EPOCHS
    for graph, parts, link in cells(benchmark.quick):
        numbers = benchmark.cell(
            f"{graph}, {parts}, {link}",
            lambda g=graph, p=parts, k=link: measure_epochs(g, p, k, num_epochs[k]),
        )
        show_epochs(benchmark, graph, parts, link, numbers)
        wrong += numbers["not as predicted"]
    benchmark.figures["rows not as predicted"] = wrong
    benchmark.finish()


if __name__ == "__main__":
    sys.exit(main())
