"""A store is written whole or not at all."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from laconic.errors import ConfigError, StoreError
from laconic.graph import Graph
from laconic.store import check_target, open_store, write_store
from laconic.store import write as write_module

PARTS = np.arange(60) % 3


def raise_after_two_chunks(error: BaseException) -> Callable[[int, int], None]:
    def progress(done: int, _: int) -> None:
        if done == 2:
            raise error

    return progress


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("boom"), MemoryError(), SystemExit(1)])
def test_an_interrupted_write_leaves_nothing(small_graph: Graph, tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        write_store(small_graph, PARTS, tmp_path / "store", progress=raise_after_two_chunks(error))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), ConfigError("too large"), OSError(28, "No space left on device")]
)
def test_folders_made_for_a_write_that_failed_are_removed_too(
    small_graph: Graph, tmp_path: Path, error: BaseException
) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises((type(error), StoreError)):
        write_store(small_graph, PARTS, tmp_path / "mine" / "a" / "b", progress=raise_after_two_chunks(error))
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_an_interrupted_overwrite_keeps_the_old_store(small_graph: Graph, tmp_path: Path) -> None:
    old = write_store(small_graph, PARTS, tmp_path / "store")
    with pytest.raises(KeyboardInterrupt):
        write_store(
            small_graph,
            (PARTS + 1) % 3,
            tmp_path / "store",
            overwrite=True,
            progress=raise_after_two_chunks(KeyboardInterrupt()),
        )
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert open_store(tmp_path / "store", verify=True).manifest == old


@pytest.mark.parametrize("when", ["write_array", "sync_tree"])
def test_a_full_disk_is_a_store_error_and_leaves_nothing(
    small_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write_module, when, full)
    with pytest.raises(StoreError, match=r"store: cannot write the store \(No space left on device\)"):
        write_store(small_graph, PARTS, tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_until_the_end_the_target_does_not_exist(small_graph: Graph, tmp_path: Path) -> None:
    seen = []

    def look(done: int, total: int) -> None:
        seen.append((done, total, (tmp_path / "store").exists(), len(list(tmp_path.glob(".store.tmp-*")))))

    write_store(small_graph, PARTS, tmp_path / "store", progress=look)
    assert seen == [(1, 3, False, 1), (2, 3, False, 1), (3, 3, False, 1)]
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_store_is_replaced_only_when_asked(small_graph: Graph, tmp_path: Path) -> None:
    write_store(small_graph, PARTS, tmp_path / "store")
    with pytest.raises(StoreError, match=r"holds a store already.*--overwrite"):
        write_store(small_graph, PARTS % 2, tmp_path / "store")
    write_store(small_graph, PARTS % 2, tmp_path / "store", overwrite=True)
    assert open_store(tmp_path / "store", verify=True).num_chunks == 2
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_damaged_store_may_be_replaced(small_graph: Graph, tmp_path: Path) -> None:
    write_store(small_graph, PARTS, tmp_path / "store")
    (tmp_path / "store" / "manifest.json").write_text("{")
    write_store(small_graph, PARTS, tmp_path / "store", overwrite=True)
    open_store(tmp_path / "store", verify=True)


@pytest.mark.parametrize("name", ["thesis.tex", "manifest.json"])
def test_a_folder_with_other_files_is_never_replaced(small_graph: Graph, tmp_path: Path, name: str) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / name).write_text("{}")
    (tmp_path / "work" / "thesis.pdf").write_text("years")
    with pytest.raises(StoreError, match="files that are not a store's"):
        write_store(small_graph, PARTS, tmp_path / "work", overwrite=True)
    assert (tmp_path / "work" / "thesis.pdf").read_text() == "years"


def test_an_empty_folder_and_missing_parents_are_fine(small_graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_store(small_graph, PARTS, tmp_path / "empty")
    write_store(small_graph, PARTS, tmp_path / "a" / "b" / "store")
    open_store(tmp_path / "empty", verify=True)
    open_store(tmp_path / "a" / "b" / "store", verify=True)


def test_a_link_stays_a_link(small_graph: Graph, tmp_path: Path) -> None:
    write_store(small_graph, PARTS, tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_store(small_graph, PARTS % 2, tmp_path / "link", overwrite=True)
    assert open_store(tmp_path / "real").num_chunks == 2
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_a_target_that_cannot_be_is_refused_before_the_work(small_graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file is a file; a store is a folder"):
        check_target(tmp_path / "file", overwrite=True)
    with pytest.raises(StoreError, match=r"no folder can be made there: .*file is not a folder"):
        check_target(tmp_path / "file" / "store", overwrite=False)
    # Even where rights allow it, the kernel's own folder takes no new ones.
    with pytest.raises(StoreError, match=r"/proc/laconic-test: "):
        write_store(small_graph, PARTS, "/proc/laconic-test")


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (np.zeros(59, int), "of length 60, one per node, got int64 of shape"),
        (np.zeros(60), "whole numbers of length 60"),
        (np.arange(60) - 1, "go from -1 to 58"),
        (np.arange(60), "between 0 and 49, but go from 0 to 59"),
    ],
)
def test_parts_that_do_not_fit_are_refused(small_graph: Graph, tmp_path: Path, parts: np.ndarray, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        write_store(small_graph, parts, tmp_path / "store", num_parts=50)
    assert list(tmp_path.iterdir()) == []


def test_unknown_options_list_the_choices(small_graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Unknown feature type 'float15'.*float16, float32.*mean 'float16'"):
        write_store(small_graph, PARTS, tmp_path / "store", features="float15")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Unknown node order 'bsf'.*Did you mean 'bfs'"):
        write_store(small_graph, PARTS, tmp_path / "store", reorder="bsf")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
