import pytest

from laconic.comm.traffic import (
    Traffic,
    all_gather_traffic,
    all_reduce_traffic,
    all_to_all_traffic,
    broadcast_traffic,
    reduce_scatter_traffic,
)

RANKS = [1, 2, 3, 4, 7]


def test_an_all_to_all_counts_what_goes_to_and_comes_from_others():
    assert all_to_all_traffic(1, sent=[8, 100, 0, 4], received=[0, 100, 16, 0]) == Traffic(2, 12, 1, 16)


def test_a_rank_alone_has_no_traffic():
    assert all_to_all_traffic(0, [5], [5]) == Traffic()
    assert all_gather_traffic(1, 5) == Traffic()
    assert reduce_scatter_traffic(0, [5]) == Traffic()
    assert broadcast_traffic(1, 0, 0, 5) == Traffic()
    assert all_reduce_traffic(1, 0, 5) == Traffic()


def test_an_all_gather_gives_to_and_gets_from_each_other_rank():
    assert all_gather_traffic(4, 10) == Traffic(3, 30, 3, 30)
    assert all_gather_traffic(4, 0) == Traffic()


def test_a_reduce_scatter_sends_the_parts_of_others_and_gets_its_own_part_from_each():
    assert reduce_scatter_traffic(1, [8, 100, 0, 4]) == Traffic(2, 12, 3, 300)
    assert reduce_scatter_traffic(2, [8, 100, 0, 4]) == Traffic(3, 112, 0, 0)


@pytest.mark.parametrize("num_ranks", RANKS)
def test_a_reduce_scatter_sends_as_much_as_is_received(num_ranks):
    parts = [(5 * rank) % 7 for rank in range(num_ranks)]
    shares = [reduce_scatter_traffic(rank, parts) for rank in range(num_ranks)]
    assert sum(share.sent_bytes for share in shares) == sum(share.received_bytes for share in shares)
    assert sum(share.sent_messages for share in shares) == sum(share.received_messages for share in shares)


def test_a_broadcast_costs_the_root_what_the_others_get():
    assert broadcast_traffic(4, 2, 2, 10) == Traffic(3, 30, 0, 0)
    assert broadcast_traffic(4, 0, 2, 10) == Traffic(0, 0, 1, 10)
    assert broadcast_traffic(4, 0, 2, 0) == Traffic()


@pytest.mark.parametrize("num_ranks", RANKS)
@pytest.mark.parametrize("num_bytes", [1, 4, 7, 1000, (1 << 40) + 3])
def test_the_shares_of_an_all_reduce_add_up_to_the_formula_exactly(num_ranks, num_bytes):
    shares = [all_reduce_traffic(num_ranks, rank, num_bytes) for rank in range(num_ranks)]
    sent = [share.sent_bytes for share in shares]
    assert sum(sent) == 2 * (num_ranks - 1) * num_bytes
    assert [share.received_bytes for share in shares] == sent
    assert max(sent) - min(sent) <= 1
    assert sum(share.sent_messages for share in shares) == 2 * (num_ranks - 1) * num_ranks


def test_an_empty_all_reduce_costs_nothing():
    assert all_reduce_traffic(4, 1, 0) == Traffic()
