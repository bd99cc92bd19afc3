"""The raw/ folder of an unpacked OGB node dataset, as arrays, in its CSV form and its binary form."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from numpy.typing import NDArray

from laconic.datasets._arrays import open_npz
from laconic.datasets._tables import read_columns, read_header, stack
from laconic.errors import DataError

# Shapes: N nodes, E edges, F features, T tasks (labels per node)


@final
@dataclass(frozen=True)
class OgbRaw:
    """What raw/ holds: edges (2, E), labels (N, T), features of nodes (N, F) and edges (E, F) if any."""

    num_nodes: int
    edges: NDArray[Any]
    labels: NDArray[Any]
    node_features: NDArray[Any] | None
    edge_features: NDArray[Any] | None


def is_ogb_folder(folder: Path) -> bool:
    """Whether `folder` looks like an unpacked OGB dataset."""
    return (folder / "raw").is_dir()


def read_ogb_raw(folder: Path) -> OgbRaw:
    """Returns the arrays of folder/raw."""
    raw = folder / "raw"
    if (raw / "relations").is_dir() or (raw / "triplet-type-list.csv.gz").exists():
        raise DataError(f"{folder} is a heterogeneous graph (as ogbn-mag is), which Laconic cannot use yet.")
    if (raw / "data.npz").is_file():
        return _read_binary(raw)
    return OgbRaw(
        num_nodes=_only(read_csv_numbers(raw, "num-node-list"), raw / "num-node-list.csv.gz"),
        edges=read_csv_numbers(raw, "edge").T,
        labels=read_csv_numbers(raw, "node-label"),
        node_features=read_csv_numbers(raw, "node-feat") if _find(raw, "node-feat") else None,
        edge_features=read_csv_numbers(raw, "edge-feat") if _find(raw, "edge-feat") else None,
    )


def _read_binary(raw: Path) -> OgbRaw:
    with open_npz(raw / "node-label.npz") as arrays:
        labels = arrays["node_label"]
    with open_npz(raw / "data.npz") as arrays:
        return OgbRaw(
            num_nodes=_only(arrays["num_nodes_list"], raw / "data.npz"),
            edges=arrays["edge_index"],
            labels=labels,
            node_features=arrays.find("node_feat"),
            edge_features=arrays.find("edge_feat"),
        )


def read_csv_numbers(folder: Path, stem: str) -> NDArray[Any]:
    """Returns the table folder/stem.csv.gz, or its unpacked .csv, which has no header line, (rows, columns)."""
    path = _find(folder, stem) or folder / f"{stem}.csv.gz"
    header = read_header(path)
    return stack(read_columns(header, header.names), str(path))


def _find(folder: Path, stem: str) -> Path | None:
    packed, plain = folder / f"{stem}.csv.gz", folder / f"{stem}.csv"
    return next((path for path in (packed, plain) if path.is_file()), None)


def _only(counts: NDArray[Any], path: Path) -> int:
    if counts.size != 1:
        raise DataError(
            f"{path} names {counts.size} graphs; one was expected, as in datasets for node classification (ogbn-...)."
        )
    return int(counts.item())
