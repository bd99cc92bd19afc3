import pytest

from laconic.comm._pieces import cut


@pytest.mark.parametrize("num_rows", [0, 1, 2, 9, 10, 11, 1000])
@pytest.mark.parametrize("row_bytes", [0, 1, 4, 100])
@pytest.mark.parametrize("piece_bytes", [1, 10, 64])
def test_pieces_cover_every_row_once_and_none_is_too_large(num_rows, row_bytes, piece_bytes):
    rows = list(range(num_rows))
    pieces = [rows[piece] for piece in cut(num_rows, row_bytes, piece_bytes)]
    assert [row for piece in pieces for row in piece] == rows
    assert all(len(piece) == 1 or len(piece) * row_bytes <= piece_bytes for piece in pieces if piece)


def test_an_empty_part_is_one_piece_since_all_ranks_take_part():
    assert len(cut(0, 8, 64)) == 1
