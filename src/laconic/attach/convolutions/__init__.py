"""PyG's convolutions written with an Aggregator, one file each. To add one: a file, and a line in this table.

Only the very class counts, not a subclass: that may have another message function.
"""

from torch_geometric import nn

from laconic.attach.convolutions.appnp import APPNP
from laconic.attach.convolutions.base import Convolution
from laconic.attach.convolutions.gat import GAT, GATV2
from laconic.attach.convolutions.gcn import GCN
from laconic.attach.convolutions.gin import GIN
from laconic.attach.convolutions.graph_conv import GRAPH_CONV
from laconic.attach.convolutions.sage import SAGE
from laconic.attach.convolutions.sgc import SGC

CONVOLUTIONS: dict[type, Convolution] = {
    nn.GCNConv: GCN,
    nn.SAGEConv: SAGE,
    nn.GINConv: GIN,
    nn.GraphConv: GRAPH_CONV,
    nn.SGConv: SGC,
    nn.APPNP: APPNP,
    nn.GATConv: GAT,
    nn.GATv2Conv: GATV2,
}
