"""`laconic partition` from the shell: what it writes, what it prints, and how it refuses."""

import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from laconic.cli.main import app
from laconic.store import open_store


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """60 nodes in two groups of 30, as a file in the format of the shared data."""
    rng = np.random.default_rng(0)
    group = np.arange(60) % 2
    pairs = [(s, d) for s in range(60) for d in range(s) if rng.random() < (0.3 if group[s] == group[d] else 0.02)]
    edges = np.array(sorted(pairs + [(d, s) for s, d in pairs]), dtype=np.int32).T
    split = np.arange(60) % 5
    path = tmp_path / "groups.npz"
    np.savez(
        path,
        edge_index=edges,
        x=rng.standard_normal((60, 6)).astype(np.float32),
        y=group.astype(np.int64),
        train_mask=split < 3,
        val_mask=split == 3,
        test_mask=split == 4,
    )
    return path


def laconic(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "100"})


def test_a_store_is_written_and_shown(data: Path, tmp_path: Path) -> None:
    result = laconic("partition", data, "--parts", 4, tmp_path / "store")
    assert result.exit_code == 0, result.output
    store = open_store(tmp_path / "store", verify=True)
    manifest = store.manifest
    assert store.num_chunks == 4
    assert manifest.num_nodes == 60
    assert manifest.provenance["source"] == str(data)
    assert manifest.provenance["partitioner"] == "metis"
    assert manifest.provenance["seed"] == 0
    for word in ("halo rows", "max/mean", "metis, seed 0", f"{manifest.num_edges:,}", "Wrote"):
        assert word in result.stdout
    assert "Dividing 60 nodes into 4 parts with metis" in result.stderr


def test_every_option_reaches_the_store(data: Path, tmp_path: Path) -> None:
    options = ["--with", "ldg(slack=1.5)", "--seed", 7, "--features", "bfloat16", "--reorder", "rcm"]
    result = laconic("partition", data, tmp_path / "store", "--parts", 3, *options)
    assert result.exit_code == 0, result.output
    manifest = open_store(tmp_path / "store").manifest
    assert manifest.provenance["partitioner"] == "ldg(slack=1.5)"
    assert manifest.provenance["seed"] == 7
    assert (manifest.features_dtype, manifest.source_dtype, manifest.reorder) == ("bfloat16", "float32", "rcm")
    assert "bfloat16 (from float32)" in result.stdout
    assert "rcm order" in result.stdout


def test_the_same_command_gives_the_same_contents(data: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert laconic("partition", data, tmp_path / name, "--parts", 3, "--with", "random").exit_code == 0
    first, second = (open_store(tmp_path / name).manifest.fingerprint for name in ("a", "b"))
    assert first == second


def test_a_store_is_replaced_only_with_overwrite(data: Path, tmp_path: Path) -> None:
    assert laconic("partition", data, tmp_path / "store", "--parts", 3).exit_code == 0
    refused = laconic("partition", data, tmp_path / "store", "--parts", 2)
    assert refused.exit_code == 2
    assert "holds a store already" in " ".join(refused.stderr.split())
    assert open_store(tmp_path / "store").num_chunks == 3
    assert laconic("partition", data, tmp_path / "store", "--parts", 2, "--overwrite").exit_code == 0
    assert open_store(tmp_path / "store").num_chunks == 2


def test_a_store_may_be_divided_anew(data: Path, tmp_path: Path) -> None:
    assert laconic("partition", data, tmp_path / "first", "--parts", 3, "--reorder", "rcm").exit_code == 0
    result = laconic("partition", tmp_path / "first", tmp_path / "second", "--parts", 2)
    assert result.exit_code == 0, result.output
    first, second = (open_store(tmp_path / name) for name in ("first", "second"))
    assert (second.num_chunks, second.manifest.name) == (2, "groups")
    assert torch.equal(first.to_graph().x, second.to_graph().x)
    (tmp_path / "first" / "manifest.json").unlink()
    refused = laconic("partition", tmp_path / "first", tmp_path / "third", "--parts", 2)
    assert refused.exit_code == 2
    assert "is not a store: it has no manifest.json" in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--with", "mettis"], "Did you mean 'metis'?"),
        (["--with", "ldg(slack=0.5)"], "slack should be 1 or more"),
        (["--with", "given(path='nowhere.npy')"], "nowhere.npy: cannot read the parts"),
        (["--features", "int8"], "Unknown feature type 'int8'"),
        (["--reorder", "sideways"], "Unknown node order 'sideways'"),
    ],
)
def test_a_wrong_option_ends_with_2_and_leaves_nothing(
    data: Path, tmp_path: Path, options: list[str], said: str
) -> None:
    result = laconic("partition", data, tmp_path / "store", "--parts", 3, *options)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["groups.npz"]


def test_a_wrong_option_is_found_before_the_data_is_read(tmp_path: Path) -> None:
    result = laconic("partition", "no-such-data", tmp_path / "store", "--parts", 3, "--with", "mettis")
    assert "Unknown partitioner 'mettis'" in result.stderr


def test_no_parts_is_refused(data: Path, tmp_path: Path) -> None:
    assert laconic("partition", data, tmp_path / "store", "--parts", 0).exit_code == 2
    assert laconic("partition", data, tmp_path / "store").exit_code == 2


def test_help_has_an_example() -> None:
    result = laconic("partition", "--help")
    assert result.exit_code == 0
    assert "laconic partition ogbn-arxiv --parts 8 store/arxiv" in result.stdout


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_ending_it_leaves_nothing_behind(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: signal.Signals
) -> None:
    from laconic.store import write

    def end(*_: object) -> None:
        signal.raise_signal(ending)

    monkeypatch.setattr(write, "sync_tree", end)
    result = laconic("partition", data, tmp_path / "store", "--parts", 3)
    assert result.exit_code == 130
    assert "Interrupted" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["groups.npz"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_more_parts_than_nodes_are_refused(data: Path, tmp_path: Path) -> None:
    result = laconic("partition", data, "--parts", 61, tmp_path / "store")
    assert result.exit_code == 2
    assert "--parts is 61, but" in result.stderr
    assert "Give --parts 60 or fewer" in " ".join(result.stderr.split())
    assert not (tmp_path / "store").exists()


def test_tables_with_text_become_an_undirected_store_that_tells_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "people"
    folder.mkdir()
    names = ["ann", "bob", "cem", "dag"]
    (folder / "edges.csv").write_text("to,from\nbob,ann\ndag,cem\n")
    (folder / "features.csv").write_text("id,age\n" + "".join(f"{name},1\n" for name in names))
    (folder / "labels.csv").write_text("id,label\n" + "".join(f"{n},{'dog' if n < 'c' else 'cat'}\n" for n in names))
    result = laconic("partition", folder, "--parts", 2, tmp_path / "store", "--undirected", "--with", "hash")
    assert result.exit_code == 0, result.output
    for words in ("4, reverse edges added", "2: cat, dog", "node ids  text", "random, seed 0"):
        assert words in result.stdout
    assert "edges.csv: source <- from, target <- to, no weight." in result.stderr
    again = laconic("partition", tmp_path / "store", "--parts", 1, tmp_path / "again")
    assert again.exit_code == 0, again.output
    assert sorted(open_store(tmp_path / "again").to_graph().id_names) == names
    shown = laconic("info", folder)
    assert "2: cat, dog" in shown.stdout
    assert "random, seed 0" in shown.stdout
