import logging
from pathlib import Path

import numpy as np
import pytest

from laconic.errors import DataError
from laconic.graph import Graph
from laconic.partitioners import Given, assign_parts

PARTS = np.arange(60) % 4


def assign(graph: Graph, path: Path, num_parts: int = 4) -> np.ndarray:
    return assign_parts(graph, Given(path=str(path)), num_parts, seed=0)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64"])
def test_an_array_file_is_followed(small_graph: Graph, tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "parts.npy", PARTS.astype(dtype))
    np.testing.assert_array_equal(assign(small_graph, tmp_path / "parts.npy"), PARTS)


def test_a_text_file_is_followed(small_graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "parts.txt").write_text("\n".join(map(str, PARTS)) + "\n")
    np.testing.assert_array_equal(assign(small_graph, tmp_path / "parts.txt"), PARTS)


@pytest.mark.parametrize("suffix", ["npy", "txt"])
def test_a_part_out_of_range_names_the_file_and_the_first_row(small_graph: Graph, tmp_path: Path, suffix: str) -> None:
    wrong = PARTS.copy()
    wrong[[17, 30]] = [9, -1]
    path = tmp_path / f"parts.{suffix}"
    np.save(path, wrong) if suffix == "npy" else path.write_text("\n".join(map(str, wrong)))
    with pytest.raises(DataError, match=rf"parts\.{suffix}: .*between 0 and 3, but row 17 \(from 0\) holds 9; 2 row"):
        assign(small_graph, path)


def test_a_wrong_length_is_refused(small_graph: Graph, tmp_path: Path) -> None:
    np.save(tmp_path / "parts.npy", PARTS[:-1])
    with pytest.raises(DataError, match=r"parts\.npy: expected 60 numbers, one per node of random, got 59"):
        assign(small_graph, tmp_path / "parts.npy")


def test_numbers_that_are_not_whole_are_refused(small_graph: Graph, tmp_path: Path) -> None:
    np.save(tmp_path / "parts.npy", PARTS.astype(float))
    with pytest.raises(DataError, match=r"expected whole numbers of shape \(nodes,\), got float64"):
        assign(small_graph, tmp_path / "parts.npy")


@pytest.mark.parametrize("line", ["two", "1.5", "", "1 2", "--1", "99999999999999999999"])
def test_a_line_that_is_no_number_is_named(small_graph: Graph, tmp_path: Path, line: str) -> None:
    lines = [*map(str, PARTS)]
    lines[5] = line
    (tmp_path / "parts.txt").write_text("\n".join(lines))
    with pytest.raises(DataError, match=rf"parts\.txt: .*row 5 \(from 0\) holds '{line}'"):
        assign(small_graph, tmp_path / "parts.txt")


@pytest.mark.parametrize("whole", [True, False])
def test_several_arrays_and_half_a_file_are_refused(small_graph: Graph, tmp_path: Path, whole: bool) -> None:
    np.savez(tmp_path / "parts.npz", parts=PARTS)
    content = (tmp_path / "parts.npz").read_bytes()
    (tmp_path / "parts.npy").write_bytes(content if whole else content[:90])
    with pytest.raises(DataError, match=r"parts\.npy: cannot read the parts of the nodes"):
        assign(small_graph, tmp_path / "parts.npy")


def test_a_large_unsigned_number_is_out_of_range_and_not_negative(small_graph: Graph, tmp_path: Path) -> None:
    np.save(tmp_path / "parts.npy", np.where(PARTS == 3, np.uint64(2**64 - 1), PARTS.astype(np.uint64)))
    with pytest.raises(DataError, match=r"row 3 .* holds 18446744073709551615"):
        assign(small_graph, tmp_path / "parts.npy")


def test_an_absent_file_says_what_to_give(small_graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.npy: cannot read .*No such file.* one number per line"):
        assign(small_graph, tmp_path / "nowhere.npy")


def test_pickled_objects_are_not_read(small_graph: Graph, tmp_path: Path) -> None:
    np.save(tmp_path / "parts.npy", np.array([1] * 60, dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot read the parts"):
        assign(small_graph, tmp_path / "parts.npy")


def test_empty_parts_are_warned_of(small_graph: Graph, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.save(tmp_path / "parts.npy", PARTS)
    with caplog.at_level(logging.WARNING, logger="laconic"):
        assign(small_graph, tmp_path / "parts.npy", num_parts=6)
    assert "2 of 6 parts hold no node" in caplog.text
