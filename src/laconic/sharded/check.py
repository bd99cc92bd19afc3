"""What a grid can share: fixed operators always, attention where features are whole, others where rows of edges are."""

from torch import nn
from torch_geometric.nn import GATConv, GATv2Conv, MessagePassing

from laconic.attach import why_no_kernel
from laconic.attach.fixed_operators import why_not_fixed
from laconic.comm.grid import Grid
from laconic.errors import UnsupportedModelError


def check_convolutions(model: nn.Module, grid: Grid) -> None:
    """Raises UnsupportedModelError, naming the layer and what to do, unless all convolutions can run on `grid`."""
    if grid.pk == 1 and grid.pj == 1:
        # As in halo exchange, all edges into a rank's rows are there.
        return
    for name, module in model.named_modules():
        reason = why_not_fixed(module) if isinstance(module, MessagePassing) else None
        if reason is None or (grid.pj == 1 and _is_attention(module)):
            continue
        where = 'grid="1d" or the strategy exchange'
        if _is_attention(module):
            where = f"a grid with pj=1, such as 1d or 2d: it needs whole rows, and this one has pj={grid.pj}"
        raise UnsupportedModelError(
            f"{name or 'the model'} is a {type(module).__name__}, whose aggregation is no fixed matrix "
            f"({reason}), which {grid} cannot share. Use {where}; or torch_geometric.nn's own GCNConv, "
            f"SAGEConv (mean, sum), GINConv, GraphConv, SGConv or APPNP, which are."
        )


def _is_attention(conv: nn.Module) -> bool:
    return isinstance(conv, GATConv | GATv2Conv) and why_no_kernel(conv) is None
