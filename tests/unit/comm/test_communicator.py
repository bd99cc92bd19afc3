import torch

from laconic.comm import Communicator, Ledger, LocalTransport, Pending, Splits, Transport, run_ranks
from laconic.comm.traffic import all_gather_traffic, all_reduce_traffic


class CountingTransport:
    """Passes everything on, and remembers what was started."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.started: list[tuple[str, int]] = []

    def __getattr__(self, name: str):
        found = getattr(self._transport, name)
        if not name.startswith("start_"):
            return found

        def start(*arguments) -> Pending:
            largest = max(argument.nbytes for argument in arguments if isinstance(argument, torch.Tensor))
            self.started.append((name, largest))
            return found(*arguments)

        return start


def communicator_of(transport: Transport, **settings) -> Communicator:
    return Communicator(transport, Ledger(transport.rank), **settings)


def test_splits_are_agreed_on_and_all_know_the_largest_part_between_two_ranks():
    counts = [[50, 1, 0], [2, 0, 7], [3, 4, 60]]

    def agree(transport):
        return communicator_of(transport).agree_on_splits(counts[transport.rank])

    assert run_ranks(3, agree) == [
        Splits((50, 1, 0), (50, 2, 3), 7),
        Splits((2, 0, 7), (1, 0, 4), 7),
        Splits((3, 4, 60), (0, 7, 60), 7),
    ]


def test_the_way_back_is_the_way_there_reversed():
    splits = Splits((1, 2), (3, 4), 5)
    assert splits.reversed == Splits((3, 4), (1, 2), 5)
    assert splits.reversed.reversed == splits


def test_agreeing_on_splits_is_booked_where_it_happens():
    def agree(transport):
        communicator = communicator_of(transport)
        with communicator.ledger.phase("repartition"):
            communicator.agree_on_splits([1, 1, 1])
        return communicator.ledger.take(epoch=4)

    expected = all_gather_traffic(3, 24)
    for rank, records in enumerate(run_ranks(3, agree)):
        assert [(r.rank, r.phase, r.operation, r.direction, r.num_messages, r.num_bytes) for r in records] == [
            (rank, "repartition", "all_gather", "received", *expected[2:]),
            (rank, "repartition", "all_gather", "sent", *expected[:2]),
        ]


def test_an_operation_is_booked_where_it_is_started_not_where_it_is_waited_for():
    def work(transport):
        communicator = communicator_of(transport)
        with communicator.ledger.phase("forward", layer=3):
            pending = communicator.start_all_reduce(torch.ones(5))
        with communicator.ledger.phase("backward"):
            pending.wait()
        return communicator.ledger.take(epoch=1)

    for rank, records in enumerate(run_ranks(2, work)):
        assert {(record.phase, record.layer) for record in records} == {("forward", 3)}
        assert records[0].num_bytes == all_reduce_traffic(2, rank, 20).received_bytes


def test_parts_that_no_rank_has_are_not_sent_at_all():
    def work(transport):
        counting = CountingTransport(transport)
        communicator = communicator_of(counting)
        splits = communicator.agree_on_splits([3 if rank == transport.rank else 0 for rank in range(2)])
        counting.started.clear()
        kept = communicator.all_to_all(torch.arange(3) + transport.rank, splits)
        return kept.tolist(), counting.started, communicator.ledger.take(epoch=0)

    for rank, (kept, started, records) in enumerate(run_ranks(2, work)):
        assert kept == [rank, rank + 1, rank + 2]
        assert started == []
        assert {record.operation for record in records} == {"all_gather"}


def test_no_piece_is_larger_than_was_asked_for():
    def work(transport):
        counting = CountingTransport(transport)
        communicator = communicator_of(counting, piece_bytes=64)
        splits = communicator.agree_on_splits([20, 30])
        counting.started.clear()
        communicator.all_to_all(torch.rand(50, 2), splits)
        communicator.all_gather(torch.rand(40))
        communicator.broadcast(torch.rand(40))
        communicator.reduce_scatter(torch.rand(30, 2), [10, 20])
        return counting.started

    for started in run_ranks(2, work):
        # A call carries one piece for each rank.
        assert all(num_bytes <= 2 * 64 for _, num_bytes in started)
        assert {name for name, _ in started} == {
            "start_all_to_all",
            "start_all_gather",
            "start_broadcast",
            "start_reduce_scatter",
        }


def test_a_rank_alone_gets_its_own_data_back_as_a_new_tensor():
    communicator = communicator_of(LocalTransport())
    rows = torch.rand(4, 2)
    splits = communicator.agree_on_splits([4])
    communicator.barrier()
    for result in (
        communicator.all_to_all(rows, splits),
        communicator.all_reduce(rows),
        communicator.all_gather(rows)[0],
        communicator.reduce_scatter(rows, [4]),
        communicator.broadcast(rows),
    ):
        assert torch.equal(result, rows)
        assert result.data_ptr() != rows.data_ptr()
    assert communicator.ledger.take(epoch=0) == []


def test_sums_of_threads_are_in_rank_order_bit_by_bit():
    parts = [torch.randn(1000, generator=torch.Generator().manual_seed(rank)) for rank in range(4)]
    expected = ((parts[0] + parts[1]) + parts[2]) + parts[3]

    def work(transport):
        communicator = communicator_of(transport, piece_bytes=64)
        mine = parts[transport.rank]
        return communicator.all_reduce(mine), communicator.reduce_scatter(mine, [100, 200, 300, 400])

    for rank, (total, part) in enumerate(run_ranks(4, work)):
        assert torch.equal(total, expected)
        assert torch.equal(part, expected.split([100, 200, 300, 400])[rank])
