"""How many threads a rank uses."""

import os

import pytest

from laconic.processes.cores import cpu_quota, num_usable_cores, threads_per_rank


def test_cores_are_shared_by_the_ranks_of_a_machine():
    cores = num_usable_cores()
    assert 1 <= cores <= os.cpu_count()
    assert threads_per_rank(1, {}) == cores
    assert threads_per_rank(cores, {}) == 1
    assert threads_per_rank(100 * cores, {}) == 1


@pytest.mark.parametrize(("chosen", "threads"), [("3", 3), ("4,2", 4), ("0", 1), ("many", 1), ("", 1)])
def test_omp_num_threads_wins_if_it_is_a_number(chosen, threads):
    assert threads_per_rank(10_000, {"OMP_NUM_THREADS": chosen}) == threads


def test_the_quota_of_a_control_group_and_of_those_above_it_is_respected(tmp_path):
    (tmp_path / "pod" / "container").mkdir(parents=True)
    assert cpu_quota(tmp_path, "/pod/container") == float("inf")
    (tmp_path / "pod" / "container" / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(tmp_path, "/pod/container") == float("inf")
    (tmp_path / "pod" / "cpu.max").write_text("250000 100000\n")
    assert cpu_quota(tmp_path, "/pod/container") == 2.5
    assert cpu_quota(tmp_path, "/") == float("inf")
    assert cpu_quota(tmp_path, "/not/there") == float("inf")
