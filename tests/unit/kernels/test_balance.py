"""Chunks of rows: all rows, in order, and about equal work."""

import numpy as np
import pytest

from laconic.kernels.balance import NUM_CHUNKS, balanced_rows


def starts_of(degrees):
    return np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)


@pytest.mark.parametrize("degrees", [[], [0], [3], [0] * 50, [1] * 1000, [10_000, *[1] * 100], [*[1] * 100, 10_000]])
@pytest.mark.parametrize("num_chunks", [1, 2, 7, NUM_CHUNKS])
def test_chunks_cover_every_row_once_and_in_order(degrees, num_chunks):
    bounds = balanced_rows(starts_of(degrees), num_chunks)
    assert len(bounds) == num_chunks + 1
    assert bounds[0] == 0
    assert bounds[-1] == len(degrees)
    assert (np.diff(bounds) >= 0).all()


def test_no_chunk_has_more_than_its_share_and_one_row():
    degrees = np.random.default_rng(0).zipf(1.8, size=5000).clip(max=2000)
    indptr = starts_of(degrees)
    bounds = balanced_rows(indptr, 16)
    work = np.diff(indptr[bounds] + bounds)
    share = (degrees.sum() + len(degrees)) / 16
    assert work.max() <= share + degrees.max() + 2


def test_a_piece_of_a_longer_list_is_cut_like_a_list_of_its_own():
    indptr = starts_of([4, 1, 7, 2, 2, 9])
    assert balanced_rows(indptr[2:], 3).tolist() == balanced_rows(indptr[2:] - indptr[2], 3).tolist()
