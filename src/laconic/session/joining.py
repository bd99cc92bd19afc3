"""join: the ranks come together on one graph, and agree that it is the same one."""

import atexit
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Union

from laconic import __version__
from laconic.comm import Communicator, Transport
from laconic.datasets import from_pyg
from laconic.graph import Graph
from laconic.launching.agreement import check_agreement
from laconic.launching.join import join_ranks
from laconic.session.data import describe_data, open_data
from laconic.session.session import Session
from laconic.strategies import parse_strategy, strategy_for

if TYPE_CHECKING:
    from torch_geometric.data import Data


def join(
    source: Union[str, Path, Graph, "Data"],
    *,
    strategy: str = "auto",
    seed: int = 0,
    communicator: Communicator | None = None,
) -> Session:
    """Returns a session on a graph. Under torchrun, SLURM or `laconic lab`, all ranks join it together.

    Args:
        source: a dataset name, a file or a store folder (as for `laconic train`), a Graph, or a PyG Data object; of a
            store each of several ranks reads its own chunks only.
        strategy: how ranks learn together; by default "single" on one rank and "exchange", exact, on several.
        seed: keys dropout.
        communicator: how ranks talk, where they were brought together already.
    """
    if communicator is None:
        communicator = join_ranks()
        # A loop without `with` parts from the others when its process ends.
        atexit.register(_part, communicator.transport)
    try:
        return _open_session(source, strategy, seed, communicator)
    except BaseException as error:
        # The others wait for this rank: tell them why it will not come.
        communicator.transport.announce_failure(error)
        raise


def _part(transport: Transport) -> None:
    # Python keeps the exception that ends a program here: the others hear the reason.
    error = getattr(sys, "last_value", None)
    if error is not None:
        transport.announce_failure(error)
    transport.close()


def _open_session(
    source: Union[str, Path, Graph, "Data"], strategy: str, seed: int, communicator: Communicator
) -> Session:
    if isinstance(source, str | Path):
        data = open_data(str(source), communicator.num_ranks)
    else:
        data = source if isinstance(source, Graph) else from_pyg(source)
    chosen = strategy_for(strategy, communicator.num_ranks)
    check_agreement(communicator, {"laconic": __version__, "strategy": chosen, "seed": str(seed)})
    check_agreement(communicator, {f"data.{key}": str(value) for key, value in describe_data(data).items()})
    return Session(data, parse_strategy(chosen), seed, communicator)
