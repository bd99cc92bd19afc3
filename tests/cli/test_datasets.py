from pathlib import Path

import pytest
from typer.testing import CliRunner

from laconic.cli.main import app
from laconic.datasets import GENERATORS, load, save_npz

runner = CliRunner()


def test_every_generator_is_shown_with_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LACONIC_DATA", raising=False)
    shown = runner.invoke(app, ["datasets"])
    assert shown.exit_code == 0
    for name in GENERATORS:
        assert f"\n  {name} " in shown.stdout
    assert "homophily=0.8" in shown.stdout
    assert "LACONIC_DATA (not set" in shown.stdout


def test_what_the_search_path_holds_is_shown_with_its_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_npz(load("sbm(nodes=1234, features=7)"), tmp_path / "mine.npz")
    monkeypatch.setenv("LACONIC_DATA", str(tmp_path))
    shown = runner.invoke(app, ["datasets"])
    row = next(line for line in shown.stdout.splitlines() if line.startswith("  mine"))
    assert row.split() == ["mine", "npz", "1,234", "12,340", "7"]


def test_a_name_that_leads_elsewhere_is_marked_as_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        save_npz(load("sbm(nodes=50)"), tmp_path / folder / "mine.npz")
    monkeypatch.setenv("LACONIC_DATA", f"{tmp_path}/first:{tmp_path}/second")
    shown = runner.invoke(app, ["datasets"]).stdout
    rows = [line.split() for line in shown.splitlines() if line.startswith("  mine")]
    assert [row[-1] for row in rows] == ["32", "hidden"]
    assert f"\n    {tmp_path}/second/mine.npz\n" in shown
    assert f"{tmp_path}/first/mine.npz" not in shown


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_lines_stay_within_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("LACONIC_DATA", raising=False)
    shown = runner.invoke(app, ["datasets"])
    assert max(map(len, shown.stdout.splitlines())) <= columns
