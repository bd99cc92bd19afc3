"""Exchanges of codecs that are late, and what an exchange remembers, as tensors."""

import numpy as np
import pytest
import torch

from laconic.comm.codecs import parse_codec
from laconic.comm.coded_exchange import CodedExchange, ExchangeKey
from laconic.comm.communicator import Communicator
from laconic.comm.exchange import RowExchange
from laconic.comm.gather import gather_unequal_tensors
from laconic.comm.ledger import Ledger
from laconic.comm.pending import Pending
from laconic.comm.transport import run_ranks

ROWS, WIDTH = 6, 16


class Watched:
    """A transport that notes when each all-to-all of bytes is started and when it is waited for."""

    def __init__(self, inner):
        self._inner = inner
        self.events: list[tuple[str, int]] = []

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def start_all_to_all(self, out, out_sizes, data, sizes):
        pending = self._inner.start_all_to_all(out, out_sizes, data, sizes)
        number = sum(event == "start" for event, _ in self.events)
        self.events.append(("start", number))

        def wait():
            self.events.append(("wait", number))
            pending.wait()

        return Pending(wait)


def build(transport, text: str) -> CodedExchange:
    """Every rank needs all rows of every other."""
    communicator = Communicator(transport, Ledger(transport.rank))
    wanted = [
        torch.arange(0 if rank == transport.rank else ROWS, dtype=torch.int64) for rank in range(transport.num_ranks)
    ]
    exchange = RowExchange.agree(communicator, wanted, ROWS)
    counts = ROWS * (1 - np.eye(transport.num_ranks, dtype=np.int64))
    ids = [np.arange(ROWS) + 100 * rank for rank in range(transport.num_ranks)]
    others = [ids[rank] for rank in range(transport.num_ranks) if rank != transport.rank]
    sent = np.concatenate([ids[transport.rank]] * (transport.num_ranks - 1))
    return CodedExchange(exchange, parse_codec(text), counts, sent, np.concatenate(others))


def rows_of(rank: int, epoch: int) -> torch.Tensor:
    return torch.linspace(-1, 1, ROWS * WIDTH, dtype=torch.float64).view(ROWS, WIDTH) * epoch + rank


def exchange_once(coded: CodedExchange, epoch: int, rate: float = 4.0) -> tuple[torch.Tensor, torch.Tensor]:
    """There and back: halo rows, and gradients that are the rows of the rank that sends them."""
    rank, num_ranks = coded.communicator.rank, coded.communicator.num_ranks
    route = coded.route(ExchangeKey(0, epoch, 0, 1, 0), np.full((num_ranks, num_ranks), rate))
    halo = route.start(rows_of(rank, epoch)).wait()
    back = route.start_back(torch.cat([rows_of(rank, epoch)] * (num_ranks - 1))).wait()
    return halo, back


def test_rows_and_gradients_of_a_late_codec_are_those_of_the_exchange_before():
    def on_rank(transport):
        coded = build(transport, "stale")
        return [exchange_once(coded, epoch) for epoch in (1, 2, 3)]

    for rank, exchanges in enumerate(run_ranks(3, on_rank)):
        others = [other for other in range(3) if other != rank]
        # The first is used at once, and again in the second.
        for used, (halo, back) in zip((1, 1, 2), exchanges, strict=True):
            expected = torch.cat([rows_of(other, used) for other in others])
            assert torch.equal(halo, expected)
            assert torch.equal(back, expected)


def test_nobody_waits_for_what_was_sent_in_the_same_step():
    def on_rank(transport):
        watched = Watched(transport)
        coded = build(watched, "stale(codec=error_feedback)")
        watched.events.clear()
        for epoch in range(1, 5):
            exchange_once(coded, epoch)
        return watched.events

    for events in run_ranks(2, on_rank):
        order = {event: place for place, event in enumerate(events)}
        # Of each step, number 2 k goes there and 2 k + 1 back; both are waited for in the next step.
        for number in range(2, 6):
            assert order["wait", number] > order["start", number + 1]
        assert ("wait", 6) not in order
        assert ("wait", 7) not in order


def test_bytes_of_a_late_codec_are_booked_in_the_step_that_sends():
    def on_rank(transport):
        coded = build(transport, "stale(codec=quantize(bits=4))")
        ledger = coded.communicator.ledger
        ledger.take(0)
        booked = []
        for epoch in (1, 2, 3):
            with ledger.phase("forward", layer=1):
                exchange_once(coded, epoch)
            booked.append([(row.operation, row.direction, row.num_bytes) for row in ledger.take(epoch)])
        return booked

    for booked in run_ranks(2, on_rank):
        assert booked[0] == booked[1] == booked[2]
        # 8 bytes of 4 bits and the ends of each row, and a checksum; there and back.
        assert ("all_to_all", "sent", 2 * (ROWS * (WIDTH // 2 + 4) + 4)) in booked[0]


def test_an_exact_exchange_in_between_is_used_at_once_and_by_the_next():
    def on_rank(transport):
        coded = build(transport, "stale(codec=error_feedback)")
        rates = (4.0, 4.0, 1.0, 4.0)
        return [exchange_once(coded, epoch, rate)[0] for epoch, rate in enumerate(rates, start=1)]

    halos = run_ranks(2, on_rank)[0]
    assert torch.equal(halos[2], rows_of(1, 3))
    assert torch.equal(halos[3], rows_of(1, 3))


@pytest.mark.parametrize("text", ["error_feedback", "cache", "stale", "stale(codec=error_feedback)"])
def test_memories_of_an_earlier_version_that_await_new_rows_begin_anew(text):
    def on_rank(transport):
        fresh, first, second = (build(transport, text) for _ in range(3))
        exchange_once(first, 1)
        second.load_tensors({**first.tensors(), "new.counts": torch.zeros(2, 2, dtype=torch.int64)})
        return exchange_once(fresh, 2), exchange_once(second, 2)

    for expected, found in run_ranks(2, on_rank):
        assert torch.equal(expected[0], found[0])
        assert torch.equal(expected[1], found[1])


@pytest.mark.parametrize("text", ["error_feedback", "cache", "stale", "stale(codec=error_feedback)"])
def test_an_exchange_goes_on_from_its_tensors_bit_by_bit(text):
    def on_rank(transport):
        whole, first = build(transport, text), build(transport, text)
        for epoch in (1, 2):
            exchange_once(whole, epoch)
            exchange_once(first, epoch)
        gathered = gather_unequal_tensors(whole.communicator, first.tensors())
        second = build(transport, text)
        second.load_tensors(first.tensors())
        expected = [exchange_once(whole, epoch) for epoch in (3, 4)]
        return expected, [exchange_once(second, epoch) for epoch in (3, 4)], gathered, first.tensors()

    runs = run_ranks(3, on_rank)
    for expected, found, _, _ in runs:
        for one, other in zip(expected, found, strict=True):
            assert torch.equal(one[0], other[0])
            assert torch.equal(one[1], other[1])
    # Rank 0 has what every rank remembers, in the types and shapes they have.
    assert [gathered for _, _, gathered, _ in runs[1:]] == [[], []]
    for gathered, (_, _, _, own) in zip(runs[0][2], runs, strict=True):
        assert gathered.keys() == own.keys()
        for name, tensor in own.items():
            assert gathered[name].dtype == tensor.dtype
            assert torch.equal(gathered[name], tensor)
