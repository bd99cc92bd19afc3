import csv

import numpy as np
import pytest
from typer.testing import CliRunner

from laconic.cli.main import app

RUNNER = CliRunner()


def laconic(*arguments):
    return RUNNER.invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a file whose nodes have ids of their own."""
    folder = tmp_path_factory.mktemp("trained")
    rng = np.random.default_rng(0)
    masks = {f"{split}_mask": np.arange(60) % 3 == number for number, split in enumerate(("train", "val", "test"))}
    np.savez(
        folder / "data.npz",
        edge_index=rng.integers(0, 60, (2, 300)),
        x=rng.normal(size=(60, 8)).astype(np.float32),
        y=np.arange(60) % 4,
        node_ids=np.arange(60) * 3 + 100,
        **masks,
    )
    quick = ["--epochs", "4", "--threads", "1", "--set", "run.tensorboard=false", "--name", str(folder / "run")]
    result = laconic("train", folder / "data.npz", *quick)
    assert result.exit_code == 0, result.output
    return folder


def test_predictions_have_the_ids_of_the_data(trained, tmp_path):
    result = laconic("predict", trained / "run", "--out", tmp_path / "out.npz")
    assert result.exit_code == 0, result.output
    assert "60 nodes" in result.stdout
    with np.load(tmp_path / "out.npz", allow_pickle=False) as arrays:
        assert arrays["node_ids"].tolist() == [number * 3 + 100 for number in range(60)]
        assert arrays["probabilities"].shape == (60, 4)
        np.testing.assert_allclose(arrays["probabilities"].sum(axis=1), 1, atol=1e-5)


def test_a_csv_of_the_last_checkpoint_from_another_folder(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = laconic("predict", trained / "run", "--out", "out.csv", "--checkpoint", "last")
    assert result.exit_code == 0, result.output
    assert "epoch 4" in result.stdout
    with (tmp_path / "out.csv").open() as file:
        assert [int(row["node_id"]) for row in csv.DictReader(file)] == [number * 3 + 100 for number in range(60)]


def test_the_same_data_under_another_name_gives_the_same_predictions(trained, tmp_path):
    (tmp_path / "copy.npz").write_bytes((trained / "data.npz").read_bytes())
    laconic("predict", trained / "run", "--out", tmp_path / "a.csv")
    laconic("predict", trained / "run", "--out", tmp_path / "b.csv", "--data", tmp_path / "copy.npz")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--checkpoint", "first"], "best or last"),
        (["--out", "x.txt"], ".npz or .csv"),
        (["--out", "absent/x.npz"], "does not exist"),
        (["--data", "no-such-graph.npz"], "no-such-graph"),
        (["--data", "grid"], "num_features"),
    ],
)
def test_what_cannot_work_is_one_paragraph_and_exit_code_2(trained, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = laconic("predict", trained / "run", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("folder.npz", "folder.npz is a folder"),
        ("file/x.npz", "file/x.npz cannot be written: file is not a folder"),
        ("file/deep/x.csv", "file/deep/x.csv cannot be written: file is not a folder"),
        ("/proc/x.npz", "/proc/x.npz cannot be written: nothing can be made in /proc"),
        ("x" * 300 + ".npz", "File name too long"),
    ],
)
def test_a_place_that_cannot_be_written_is_told_before_the_work(trained, tmp_path, monkeypatch, out, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder.npz").mkdir()
    # The work itself would find this.
    result = laconic("predict", trained / "run", "--out", out, "--data", "no-such-graph")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert "no-such-graph" not in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.npz"]


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    result = laconic("predict", tmp_path)
    assert result.exit_code == 2
    assert "is not the folder of a run" in " ".join(result.stderr.split())


def test_the_tables_of_the_page_on_data_give_predictions_in_their_own_words(tmp_path, monkeypatch):
    """docs/data.md, with more rows."""
    monkeypatch.chdir(tmp_path)
    names = ["ann", "bob", "cem", "dag", *(f"p{number:02}" for number in range(26))]
    (tmp_path / "people").mkdir()
    edges = "".join(f"{one},{names[(7 * row + 1) % 30]},{row}\n" for row, one in enumerate(names))
    features = "".join(f"{one},{20 + row},{1.5 + row % 2}\n" for row, one in enumerate(names))
    labels = "".join(f"{one},{('cat', 'dog')[row % 2]}\n" for row, one in enumerate(names))
    (tmp_path / "people/edges.csv").write_text(f"citing,cited,year\n{edges}")
    (tmp_path / "people/features.csv").write_text(f"id,age,height\n{features}")
    (tmp_path / "people/labels.csv").write_text(f"id,label\n{labels}")
    data = "people(columns='source=citing, target=cited, ignore=year')"
    quick = ["--set", "run.tensorboard=false", "--threads", "1"]
    trained = laconic("train", data, "--undirected", "--epochs", 2, "--name", "runs/people", *quick)
    assert trained.exit_code == 0, trained.output
    assert "edges.csv: source <- citing, target <- cited, no weight." in trained.stderr
    result = laconic("predict", "runs/people", "--out", "predictions.csv")
    assert result.exit_code == 0, result.output
    header, *rows = (tmp_path / "predictions.csv").read_text().splitlines()
    assert header == "node_id,class,probability"
    assert [row.split(",")[0] for row in rows] == names
    assert {row.split(",")[1] for row in rows} <= {"cat", "dog"}
