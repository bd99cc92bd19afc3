"""From the text of a strategy to the part of a rank, and to its worker."""

from typing import Any

from torch import nn

from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import Transport
from laconic.comm.transport.local import LocalTransport
from laconic.graph import Graph
from laconic.store import Store
from laconic.strategies import parse_strategy
from laconic.strategies.base import ExpectedRun


def place(
    text: str,
    source: Graph | Store,
    model: nn.Module | None = None,
    ranks: Transport | Communicator | None = None,
    **expected: Any,
) -> Any:
    """What a rank holds; alone by default. `expected` is what else is known of the run."""
    transport = LocalTransport() if ranks is None else ranks
    if not isinstance(transport, Communicator):
        transport = Communicator(transport, Ledger(transport.rank))
    return parse_strategy(text).place(source, transport, ExpectedRun(model or nn.Identity(), **expected))


def start(
    text: str,
    source: Graph | Store,
    model: nn.Module,
    ranks: Transport | Communicator | None = None,
    *,
    seed: int = 0,
    **expected: Any,
) -> Any:
    """The worker of a model that is not checked."""
    return place(text, source, model, ranks, **expected).start(seed)
