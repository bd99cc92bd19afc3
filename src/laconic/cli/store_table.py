"""What `partition` and `info` print of a store or a graph: facts in two columns, and a table with a row per part."""

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from laconic.units import format_bytes, format_count

if TYPE_CHECKING:
    from laconic.graph.stats import GraphStats, PartitionStats
    from laconic.store import Manifest, Store

MOST_ROWS = 32
_MOST_NAMES = 8


def print_store(out: Console, store: "Store", *, all_parts: bool = False) -> None:
    """Prints what a store holds: sizes, then nodes, edges, cut and halo of each part."""
    manifest = store.manifest
    out.print(f"Store {store.folder}", style="bold", markup=False, soft_wrap=True)
    out.print(_facts_table(_store_facts(manifest)))
    out.print()
    shown = manifest.num_chunks if all_parts else min(MOST_ROWS, manifest.num_chunks)
    out.print(_parts_table(manifest, shown))
    if shown < manifest.num_chunks:
        out.print(f"{manifest.num_chunks - shown} more parts: laconic info {store.folder} --all", markup=False)


def print_graph(out: Console, stats: "GraphStats") -> None:
    """Prints what a graph is like: sizes, degrees, labels, splits, and what may be wrong with it."""
    out.print(f"Graph {stats.name}", style="bold", markup=False, soft_wrap=True)
    out.print(_facts_table(_graph_facts(stats)))


def _facts_table(facts: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(f"  {name}", value)
    return table


def _store_facts(manifest: "Manifest") -> list[tuple[str, str]]:
    came = manifest.provenance
    features = f"{format_count(manifest.num_features)}, {manifest.features_dtype}"
    if manifest.features_dtype != manifest.source_dtype:
        features += f" (from {manifest.source_dtype})"
    facts = [
        ("graph", f"{manifest.name}, from {came['source']}" if came.get("source") else manifest.name),
        ("nodes", format_count(manifest.num_nodes)),
        ("node ids", "text" if manifest.has_id_names else "numbers"),
        ("edges", _say_edges(manifest)),
        ("features", features),
        ("labels" if manifest.is_multilabel else "classes", _say_classes(manifest.num_classes, manifest.class_names)),
        ("splits", _say_splits(manifest.num_of_split, manifest.num_nodes, manifest.split_origin)),
        ("parts", _say_parts(manifest)),
        ("cut", _say_cut(manifest.partition)),
        ("on disk", format_bytes(manifest.num_bytes)),
        ("written", f"{came.get('created')} by laconic {came.get('laconic_version')}"),
    ]
    return facts


def _say_edges(manifest: "Manifest") -> str:
    said = format_count(manifest.num_edges) + (" with weights" if manifest.weight_dtype else "")
    return f"{said}, reverse edges added" if manifest.provenance.get("undirected") == "true" else said


def _say_classes(num_classes: int, names: "tuple[str, ...]") -> str:
    if not names:
        return format_count(num_classes)
    return f"{format_count(num_classes)}: {', '.join(names[:_MOST_NAMES])}{', ...' if len(names) > _MOST_NAMES else ''}"


def _say_splits(counts: "dict[str, int] | None", num_nodes: int, origin: str) -> str:
    if counts is None:
        return "not told by a store of this age"
    told = ", ".join(f"{split} {format_count(count)} ({count / num_nodes:.1%})" for split, count in counts.items())
    return f"{told}; {origin}" if origin else told


def _say_parts(manifest: "Manifest") -> str:
    said = str(manifest.num_chunks)
    if manifest.provenance.get("partitioner"):
        said += f" by {manifest.provenance['partitioner']}, seed {manifest.provenance.get('seed')}"
    return said if manifest.reorder == "none" else f"{said}; nodes in {manifest.reorder} order"


def _say_cut(partition: "PartitionStats") -> str:
    cut, edges = sum(partition.num_cut_edges), sum(partition.num_edges)
    return f"{partition.cut_share:.1%} of the edges ({format_count(cut)} of {format_count(edges)})"


def _parts_table(manifest: "Manifest", shown: int) -> Table:
    stats = manifest.partition
    table = Table(box=box.SIMPLE_HEAD, show_footer=True, pad_edge=False)
    counts = (stats.num_nodes, stats.num_train, stats.num_edges, stats.num_cut_edges, stats.num_halo_rows)
    on_disk = [sum(entry.num_bytes for entry in chunk.files.values()) for chunk in manifest.chunks]
    names = ("nodes", "training", "edges", "cut", "halo rows")
    table.add_column("part", footer="total\nmax/mean", justify="right")
    for name, column in zip(names, counts, strict=True):
        table.add_column(name, footer=f"{format_count(sum(column))}\n{_balance(column)}", justify="right")
    table.add_column("on disk", footer=f"{format_bytes(sum(on_disk))}\n{_balance(on_disk)}", justify="right")
    for part in range(shown):
        table.add_row(str(part), *(format_count(column[part]) for column in counts), format_bytes(on_disk[part]))
    return table


def _balance(counts: "tuple[int, ...] | list[int]") -> str:
    return f"{max(counts) * len(counts) / sum(counts):.2f}" if sum(counts) else "-"


def _graph_facts(stats: "GraphStats") -> list[tuple[str, str]]:
    splits = {"train": stats.num_train, "val": stats.num_val, "test": stats.num_test}
    homophily = "-" if stats.homophily is None else f"{stats.homophily:.3f} of the edges join two nodes of one class"
    return [
        ("nodes", format_count(stats.num_nodes)),
        ("node ids", "text" if stats.has_text_ids else "numbers"),
        ("edges", f"{format_count(stats.num_edges)}, {'in both directions' if stats.is_symmetric else 'directed'}"),
        ("features", format_count(stats.num_features)),
        ("labels" if stats.is_multilabel else "classes", _say_classes(stats.num_classes, stats.class_names)),
        ("splits", _say_splits(splits, stats.num_nodes, stats.split_origin)),
        ("in-degree", f"mean {stats.mean_degree:.1f}, largest {format_count(stats.max_degree)}"),
        ("homophily", homophily),
        ("isolated nodes", format_count(stats.num_isolated)),
        ("self-loops", format_count(stats.num_self_loops)),
        ("duplicates", format_count(stats.num_duplicates)),
    ]
