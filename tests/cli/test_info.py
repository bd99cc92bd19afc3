"""`laconic info` from the shell: a store, a graph, and neither."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from laconic.cli.main import app
from laconic.graph import Graph
from laconic.store import write_store


def laconic(*arguments: object, columns: int = 100) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(columns)})


@pytest.fixture
def store(small_graph: Graph, tmp_path: Path) -> Path:
    write_store(small_graph, np.arange(60) % 3, tmp_path / "store", provenance={"source": "here"})
    return tmp_path / "store"


@pytest.mark.parametrize("columns", [80, 120])
def test_a_store_is_shown_whole_at_any_width(store: Path, columns: int) -> None:
    result = laconic("info", store, columns=columns)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= columns or str(store) in max(lines, key=len)
    header = next(line.split() for line in lines if "training" in line)
    assert header == ["part", "nodes", "training", "edges", "cut", "halo", "rows", "on", "disk"]
    row = next(line.split() for line in lines if line.split()[:1] == ["2"])
    assert row[1] == "20"
    total = next(line.split() for line in lines if line.split()[:1] == ["total"])
    assert total[1:4] == ["60", "30", "300"]


def test_a_store_of_many_parts_is_cut_short_unless_all_are_wanted(small_graph: Graph, tmp_path: Path) -> None:
    write_store(small_graph, np.arange(60) % 40, tmp_path / "store")

    def parts_shown(result: Result) -> list[int]:
        first_words = (line.split()[0] for line in result.stdout.splitlines() if line.split())
        return [int(word) for word in first_words if word.isdecimal()]

    short = laconic("info", tmp_path / "store")
    assert "8 more parts" in short.stdout
    assert max(parts_shown(short)) == 31
    assert max(parts_shown(laconic("info", tmp_path / "store", "--all"))) == 39


def test_verify_finds_an_altered_file(store: Path) -> None:
    assert "Every file holds what was written" in laconic("info", store, "--verify").stdout
    path = store / "chunk_00001" / "x.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert laconic("info", store).exit_code == 0
    result = laconic("info", store, "--verify")
    assert result.exit_code == 2
    assert "chunk_00001/x.npy has been altered" in " ".join(result.stderr.split())


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9])])
def test_a_store_with_a_file_lost_or_cut_short_is_not_shown_as_whole(store: Path, damage) -> None:
    damage(store / "chunk_00001" / "y.npy")
    result = laconic("info", store)
    assert result.exit_code == 2
    assert "chunk_00001/y.npy" in result.stderr
    assert result.stdout == ""


def test_half_a_store_is_told_from_a_graph(store: Path) -> None:
    (store / "manifest.json").unlink()
    result = laconic("info", store)
    assert result.exit_code == 2
    assert "is not a store: it has no manifest.json" in " ".join(result.stderr.split())


def test_a_graph_is_shown(tmp_path: Path) -> None:
    nodes = np.arange(30)
    edges = np.stack([nodes, (nodes + 1) % 30])
    path = tmp_path / "ring.npz"
    masks = {f"{name}_mask": nodes % 3 == k for k, name in enumerate(("train", "val", "test"))}
    edge_index = np.concatenate([edges, edges[::-1]], axis=1).astype(np.int32)
    np.savez(path, edge_index=edge_index, x=np.ones((30, 2), np.float32), y=nodes % 2, **masks)
    result = laconic("info", path)
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    for words in ("nodes 30", "edges 60, in both directions", "classes 2", "train 10 (33.3%)", "homophily 0.000"):
        assert words in said


def test_neither_store_nor_data_is_refused(tmp_path: Path) -> None:
    result = laconic("info", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "nowhere" in result.stderr
    assert "Traceback" not in result.output


def test_verify_is_for_stores_only(tmp_path: Path) -> None:
    result = laconic("info", tmp_path / "nowhere", "--verify")
    assert result.exit_code == 2
    assert "--verify checks a store" in result.stderr


def test_help_has_an_example() -> None:
    assert "laconic info store/arxiv" in laconic("info", "--help").stdout
