"""What a grid can share: fixed operators on any grid, other convolutions where every rank has whole rows of edges."""

from torch import nn
from torch_geometric.nn import APPNP, GCNConv, GINConv, GraphConv, MessagePassing, SAGEConv, SGConv

from laconic.attach import why_no_kernel
from laconic.comm.grid import Grid
from laconic.errors import UnsupportedModelError

_FIXED = (GCNConv, SAGEConv, GINConv, GraphConv, SGConv, APPNP)


def check_convolutions(model: nn.Module, grid: Grid) -> None:
    """Raises UnsupportedModelError, naming the layer and what to do, unless all convolutions can run on `grid`."""
    if grid.pk == 1 and grid.pj == 1:
        # As in halo exchange, all edges into a rank's rows are there.
        return
    for name, module in model.named_modules():
        if isinstance(module, MessagePassing) and not _is_fixed(module):
            raise UnsupportedModelError(
                f"{name or 'the model'} is a {type(module).__name__}, whose aggregation is no fixed matrix: {grid} "
                f'splits the edges of a node over ranks. Use grid="1d", the strategy compressed_halo, or a '
                f"convolution such as GCNConv, SAGEConv (mean, sum), GINConv, GraphConv, SGConv or APPNP."
            )


def _is_fixed(conv: MessagePassing) -> bool:
    return why_no_kernel(conv) is None and type(conv) in _FIXED and conv.aggr != "max"
