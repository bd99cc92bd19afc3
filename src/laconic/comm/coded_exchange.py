"""CodedExchange: a RowExchange whose messages go through a codec, each pair of ranks at a rate of its own.

    coded = CodedExchange(exchange, codec, counts, sent_ids, received_ids)
    route = coded.route(ExchangeKey(seed=0, epoch=7, step=0, layer=1, call=0), rates)
    halo = route.start(x).wait()
    back = route.start_back(grad_halo).wait()       # through the adjoint, or coded on its own

All of an exchange travels in one all-to-all of bytes. Where every message goes at rate 1, or would be no smaller coded,
it is the plain exchange, bit by bit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.comm.codecs.base import Codec, Direction, Memory, MessageKey, as_bytes, from_bytes
from laconic.comm.communicator import Communicator, Splits
from laconic.comm.exchange import RowExchange
from laconic.comm.frames import HEADER_BYTES, add_header, take_header
from laconic.comm.message_sizes import CODABLE, Counts, Rates, any_coded, exchange_bytes, is_coded, message_bytes
from laconic.comm.pending import Pending
from laconic.errors import CommunicationError, ConfigError

# Shapes: S rows sent, H rows received, P ranks

_MOST_FORMS = 64


@final
@dataclass(frozen=True)
class ExchangeKey:
    """Which exchange of a run: messages are keyed by it."""

    seed: int
    epoch: int
    step: int
    layer: int
    call: int


@final
@dataclass
class Errors:
    """What coding has cost, summed over this rank's forward messages."""

    lost: float = 0.0
    sent: float = 0.0


@final
class CodedExchange:
    """Who sends which rows to whom, through which codec; and what both ends remember of earlier messages.

    Args:
        exchange: the rows.
        codec: how they are written.
        counts: rows that go from each rank to each, (P, P), the same on all ranks.
        sent_ids, received_ids: ids of the rows that go and come, in the order of `exchange`.
    """

    def __init__(
        self,
        exchange: RowExchange,
        codec: Codec,
        counts: Counts,
        sent_ids: NDArray[np.int64],
        received_ids: NDArray[np.int64],
    ) -> None:
        self.exchange = exchange
        self.codec = codec
        self.counts = counts
        self.sent_ids = np.split(sent_ids, np.cumsum(exchange.splits.send)[:-1])
        self.received_ids = np.split(received_ids, np.cumsum(exchange.splits.receive)[:-1])
        # Every rank goes through all pairs of ranks for them, so they are kept while rates stay.
        self._sizes: dict[tuple[bytes, int, int, int, str], Counts | None] = {}
        self.memories: dict[tuple[int, int, str, str, int], Memory] = {}
        self.under_way: dict[tuple[int, int, str], Pending[Tensor]] = {}
        """Of codecs that are late, the last exchange of each layer, call and direction: what the next one uses."""
        self.errors: dict[tuple[int, int], Errors] | None = None
        """Of each layer and receiving rank, if they are to be measured."""

    @property
    def communicator(self) -> Communicator:
        return self.exchange.communicator

    def route(self, key: ExchangeKey, rates: Rates) -> "CodedRoute":
        """Returns the way of one exchange and of the gradients that belong to it.

        Args:
            rates: of the messages from each rank to each, (P, P), the same on all ranks.
        """
        return CodedRoute(self, key, rates)

    def sizes(self, rates: Rates, width: int, itemsize: int, direction: Direction) -> Counts | None:
        """Returns the bytes that go from each rank to each, (P, P); None where all of them go as they are."""
        form = (rates.tobytes(), self.exchange.version, width, itemsize, direction)
        if form not in self._sizes:
            if len(self._sizes) >= _MOST_FORMS:
                self._sizes.clear()
            is_any = any_coded(self.codec, self.counts, rates, width, itemsize)
            sizes = exchange_bytes(self.codec, self.counts, rates, width, itemsize, direction) if is_any else None
            self._sizes[form] = sizes
        return self._sizes[form]

    def memory(self, key: ExchangeKey, direction: Direction, end: Literal["out", "in"], peer: int) -> Memory:
        """Returns what this end of a line to `peer` remembers."""
        return self.memories.setdefault((key.layer, key.call, direction, end, peer), Memory())

    def tensors(self) -> dict[str, Tensor]:
        """Returns what this rank remembers, by name; what is under way is waited for."""
        # First what is under way: decoding it changes memories.
        arrived = {
            ".".join(["under_way", *map(str, slot)]): arriving.wait() for slot, arriving in self.under_way.items()
        }
        remembered = {
            ".".join(["memory", *map(str, line), name]): tensor
            for line, memory in self.memories.items()
            for name, tensor in memory.tensors.items()
        }
        return arrived | remembered

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes back what `tensors` gave."""
        self.memories, self.under_way = {}, {}
        if "new.counts" in tensors:
            # An earlier version wrote this between a change of the graph and the next message. It remembers the rows
            # that stayed only; as after any change, memories begin anew.
            return
        for key, tensor in tensors.items():
            kind, layer, call, direction, *rest = key.split(".")
            if kind == "under_way":
                self.under_way[int(layer), int(call), direction] = Pending.done(tensor)
                continue
            end, peer, name = rest
            line = (int(layer), int(call), direction, end, int(peer))
            self.memories.setdefault(line, Memory()).tensors[name] = tensor


@final
class CodedRoute:
    """One exchange, coded."""

    def __init__(self, coded: CodedExchange, key: ExchangeKey, rates: Rates) -> None:
        self._coded = coded
        self._exchange_key = key
        self._rates = rates
        self._is_started = False
        # Of each peer: what went and came forward, for codecs whose adjoint depends on it.
        self._packets: dict[tuple[str, int], Tensor] = {}

    @property
    def communicator(self) -> Communicator:
        return self._coded.communicator

    def start(self, x: Tensor) -> Pending[Tensor]:
        """Sends the rows of x, (N, ...), that others need, coded; what is waited for are the rows needed here."""
        if self._is_started:
            raise ConfigError(
                "A second derivative goes through a compressed exchange, whose first is an approximation already. Use "
                "the codec identity."
            )
        self._is_started = True
        exchange = self._coded.exchange
        sent = x.detach().index_select(0, exchange.send_rows)
        return self._start(sent, "forward", lambda: exchange.start(x))

    def start_back(self, halo: Tensor) -> Pending[Tensor]:
        """Sends gradients, one for each row that came, to the owners; what is waited for is (S, ...)."""
        return self._start(halo.detach(), "backward", lambda: self._coded.exchange.start_back(halo))

    def _start(self, rows: Tensor, direction: Direction, start_plain: Callable[[], Pending[Tensor]]) -> Pending[Tensor]:
        coded, flat = self._coded, rows.flatten(1)
        width = flat.shape[1]
        # All messages go the same way, so all ranks ask about all of them.
        sizes = coded.sizes(self._rates, width, flat.itemsize, direction) if rows.dtype in CODABLE else None
        if sizes is None:
            return start_plain().then(lambda halo: self._note(rows, halo, direction))
        splits = coded.exchange.splits if direction == "forward" else coded.exchange.splits.reversed
        parts = flat.split_with_sizes(list(splits.send))
        frames = [self._pack(peer, part, direction) for peer, part in enumerate(parts)]
        if coded.codec.is_fixed_size:
            rank = self.communicator.rank
            byte_splits = Splits(tuple(sizes[rank].tolist()), tuple(sizes[:, rank].tolist()), int(sizes.max()))
        else:
            byte_splits = self.communicator.agree_on_splits([len(frame) for frame in frames])
        assert list(byte_splits.send) == [len(frame) for frame in frames], "a packet is not of the promised size"
        pending = self.communicator.start_all_to_all(torch.cat(frames), byte_splits)

        def unpack() -> Tensor:
            came = pending.wait().split_with_sizes(list(byte_splits.receive))
            parts = zip(came, splits.receive, strict=True)
            unpacked = [self._unpack(peer, *part, rows, direction) for peer, part in enumerate(parts)]
            return torch.cat(unpacked).view(-1, *rows.shape[1:])

        decoded = Pending(unpack)
        return self._put_off(decoded, direction) if coded.codec.is_late else decoded

    def _put_off(self, arriving: Pending[Tensor], direction: Direction) -> Pending[Tensor]:
        """Returns what arrived, or arrives, from the exchange before this one; from this one if it is the first."""
        slot = (self._exchange_key.layer, self._exchange_key.call, direction)
        before = self._coded.under_way.get(slot, arriving)
        self._coded.under_way[slot] = arriving
        return before

    def _pack(self, peer: int, rows: Tensor, direction: Direction) -> Tensor:
        """Returns the rows for `peer` as bytes."""
        codec, rate = self._coded.codec, self._rate(peer, direction, "out")
        if not is_coded(codec, len(rows), rows.shape[1], rate, rows.itemsize):
            if len(rows):
                codec.note_exact(rows, self._memory(direction, "out", peer))
            return as_bytes(rows)
        memory = self._memory(direction, "out", peer)
        key = self._key(peer, direction, "out")
        packet = self._codec(direction, "out", peer, rows).encode(rows, key, rate, memory)
        if direction == "forward":
            self._packets["out", peer] = packet
            self._measure(rows, packet, key, rate, memory)
        return add_header(packet, key, self._coded.exchange.version)

    def _unpack(self, peer: int, came: Tensor, num_rows: int, like: Tensor, direction: Direction) -> Tensor:
        """Returns the rows from `peer`, (num_rows, width)."""
        codec, rate = self._coded.codec, self._rate(peer, direction, "in")
        width, dtype = like.shape[1:].numel(), like.dtype
        if not is_coded(codec, num_rows, width, rate, dtype.itemsize):
            rows = from_bytes(came, dtype, num_rows, width)
            if num_rows:
                codec.note_exact(rows, self._memory(direction, "in", peer))
            return rows
        memory = self._memory(direction, "in", peer)
        key = self._key(peer, direction, "in")
        packet = self._take_header(came, key, rate, width, dtype.itemsize)
        if direction == "forward":
            self._packets["in", peer] = packet
        chosen = self._codec(direction, "in", peer, torch.empty(num_rows, width, dtype=dtype))
        return chosen.decode(packet, key, rate, width=width, dtype=dtype, memory=memory)

    def _take_header(self, came: Tensor, key: MessageKey, rate: float, width: int, itemsize: int) -> Tensor:
        codec, num_bytes = self._coded.codec, None
        if codec.is_fixed_size:
            num_rows = len(key.node_ids)
            num_bytes = message_bytes(codec, num_rows, width, rate, itemsize, key.direction) - HEADER_BYTES
        try:
            return take_header(came, key, self._coded.exchange.version, num_bytes)
        except CommunicationError as error:
            # Only the receiver sees it: the others would wait for this rank.
            self.communicator.transport.announce_failure(error)
            raise

    def _codec(self, direction: Direction, end: Literal["out", "in"], peer: int, rows: Tensor) -> Codec:
        codec = self._coded.codec
        if direction == "forward" or codec.backward != "adjoint":
            return codec
        # What goes back out is for what came in.
        packet = self._packets["in" if end == "out" else "out", peer]
        return codec.adjoint(packet, len(rows), rows.shape[1], self._rate(peer, direction, end), rows.dtype)

    def _rate(self, peer: int, direction: Direction, end: Literal["out", "in"]) -> float:
        # Gradients go at the rate of the rows they belong to, which went the other way.
        rank = self.communicator.rank
        is_from_here = (end == "out") == (direction == "forward")
        return float(self._rates[rank, peer] if is_from_here else self._rates[peer, rank])

    def _key(self, peer: int, direction: Direction, end: Literal["out", "in"]) -> MessageKey:
        rank = self.communicator.rank
        ids = self._coded.sent_ids if (end == "out") == (direction == "forward") else self._coded.received_ids
        forward = None
        if direction == "backward" and self._coded.codec.backward == "adjoint":
            forward = self._key(peer, "forward", "in" if end == "out" else "out")
        return MessageKey(
            **vars(self._exchange_key),
            direction=direction,
            sender=rank if end == "out" else peer,
            receiver=peer if end == "out" else rank,
            node_ids=ids[peer],
            adjoint_of=forward,
        )

    def _memory(self, direction: Direction, end: Literal["out", "in"], peer: int) -> Memory:
        return self._coded.memory(self._exchange_key, direction, end, peer)

    def _note(self, sent: Tensor, came: Tensor, direction: Direction) -> Tensor:
        """Tells the codec of rows that went as they are; returns those that came."""
        codec, splits = self._coded.codec, self._coded.exchange.splits
        if not codec.has_memory:
            return came
        if codec.is_late:
            # First what is under way still: codecs take their messages in order.
            self._put_off(Pending.done(came), direction).wait()
        splits = splits if direction == "forward" else splits.reversed
        ends: Sequence[tuple[Literal["out", "in"], Tensor, tuple[int, ...]]]
        ends = (("out", sent, splits.send), ("in", came, splits.receive))
        for end, rows, sizes in ends:
            for peer, part in enumerate(rows.flatten(1).split_with_sizes(list(sizes))):
                if len(part):
                    codec.note_exact(part, self._memory(direction, end, peer))
        return came

    def _measure(self, rows: Tensor, packet: Tensor, key: MessageKey, rate: float, memory: Memory) -> None:
        if self._coded.errors is None:
            return
        errors = self._coded.errors.setdefault((self._exchange_key.layer, key.receiver), Errors())
        codec = self._coded.codec
        errors.lost += float((rows - codec.arrived(packet, key, rate, rows, memory)).square().sum())
        errors.sent += float(rows.square().sum())
