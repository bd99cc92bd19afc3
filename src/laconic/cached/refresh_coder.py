"""RefreshCoder: the rows that a refresh sends go through a codec.

Historical rows are old after the first step, so they may as well be rounded: with four bits a number they are off by
less than a few steps of training move them. The graph's own features, which never grow old, go as they are.
"""

from typing import Protocol, final

import numpy as np

from laconic.comm.codecs import Codec, parse_codec
from laconic.comm.coded_exchange import ExchangeKey
from laconic.comm.exchange import Route
from laconic.comm.ledger import Ledger
from laconic.comm.message_sizes import Counts
from laconic.errors import ConfigError
from laconic.sharded.coder import coded_fetch
from laconic.sharded.placement import Placement
from laconic.sharded.rates import Exchanged

# Shapes: P ranks

# Of codecs that follow a rate: as many bytes as four bits a number.
_RATE = 8.0


def parse_refresh_codec(spec: str) -> Codec:
    """Returns the codec of a spec; raises ConfigError for one that a refresh cannot go through."""
    codec = parse_codec(spec)
    if codec.has_memory or codec.is_late:
        raise ConfigError(
            f"codec {spec} remembers earlier messages. A run that is taken up makes its last refresh anew, without "
            f"those before it, and would remember other rows. Use quantize, cast, or another codec without a memory."
        )
    return codec


class RowCoder(Protocol):
    """Says how the rows of each exchange travel."""

    def begin(self, *, is_training: bool) -> None:
        """Told when a forward pass begins."""

    def route(self, layer: int) -> Route:
        """Returns the way of the next exchange of a layer."""


@final
class RefreshCoder:
    """The ways of the exchanges of refreshes.

    Args:
        placement: whose halo rows travel.
        codec: as `parse_refresh_codec` gives it.
        counts: rows that go from each rank to each, (P, P).
        seed: of the run.
    """

    def __init__(self, placement: Placement, codec: Codec, counts: Counts, seed: int) -> None:
        self._coded = coded_fetch(placement, codec, counts)
        self._rates = np.full(counts.shape, _RATE)
        self._seed = seed
        self._epoch = 0
        self._calls: dict[int, int] = {}

    def start_epoch(self, epoch: int) -> None:
        """Moves on to the super-epoch that begins with `epoch`."""
        self._epoch = epoch

    def begin(self, *, is_training: bool) -> None:
        self._calls = {}

    def route(self, layer: int) -> Route:
        call = self._calls.get(layer, 0)
        self._calls[layer] = call + 1
        return self._coded.route(ExchangeKey(self._seed, self._epoch, 0, layer, call), self._rates)

    def count(self, exchanges: list[Exchanged], ledger: Ledger) -> None:
        """Counts what exchanges that were recorded cost."""
        for one in exchanges:
            with ledger.phase("repartition", layer=one.layer):
                one.count(ledger, self._coded.codec, self._coded.counts, self._rates)
