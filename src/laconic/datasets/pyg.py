"""A PyTorch Geometric `Data` object, or an in-memory dataset of one, as a Graph.

graph = from_pyg(Planetoid("data", "Cora"))
"""

from typing import Any

import torch
from torch import Tensor

from laconic.datasets._fields import make_graph, to_labels
from laconic.datasets._splits import SPLITS, labelled_masks
from laconic.errors import DataError
from laconic.graph import Graph


def from_pyg(
    source: Any,
    *,
    name: str = "",
    add_reverse_edges: bool = False,
    split: int = 0,
    train: float = 0.6,
    val: float = 0.2,
    seed: int = 0,
) -> Graph:
    """Returns the graph of a PyG object; tensors are shared where they can be.

    Args:
        source: a `torch_geometric.data.Data`, or a dataset that holds one.
        name: what to call it in tables; the dataset's own name if not given.
        add_reverse_edges: as for `load_npz`.
        split: which split to take where masks have several, (nodes, splits).
        train, val, seed: shares and seed of a random split, where there are no masks.
    """
    data, name = _only_data(source, name)
    where = f"PyG data {name}"
    _refuse_unusable(data, where)
    x, y = data.x, data.y
    for field, value in (("edge_index", data.edge_index), ("x", x), ("y", y)):
        if not isinstance(value, Tensor):
            raise DataError(f"{where}: {field} should be a tensor, got {type(value).__name__}.")
    if x.layout != torch.strided:
        x = x.to_dense()
    labels = to_labels(y.detach().cpu().numpy(), f"{where}: y")
    masks = _masks(data, split, where)
    weight = data.edge_weight if "edge_weight" in data else None
    return make_graph(
        where,
        add_reverse_edges=add_reverse_edges,
        name=name,
        edge_index=data.edge_index.cpu(),
        x=x.detach().cpu(),
        y=labels,
        edge_weight=None if weight is None else weight.detach().cpu(),
        **(labelled_masks(labels, train, val, seed, where=where) if masks is None else masks),
    )


def _only_data(source: Any, name: str) -> tuple[Any, str]:
    # Imported here: it takes seconds, and no other loader needs it.
    from torch_geometric.data import Data, Dataset, HeteroData

    data = source
    if isinstance(source, Dataset):
        name = name or str(getattr(source, "name", type(source).__name__))
        if len(source) != 1:
            raise DataError(f"PyG dataset {name} holds {len(source)} graphs; Laconic takes one: give it dataset[i].")
        data = source[0]
    name = name or "pyg"
    if isinstance(data, HeteroData):
        raise DataError(f"PyG data {name} is a HeteroData: heterogeneous graphs cannot be used yet.")
    if not isinstance(data, Data):
        raise DataError(
            f"from_pyg takes a torch_geometric.data.Data or a dataset that holds one, got {type(data).__name__}. "
            f"A file of torch.save may hold a tuple or a dict: make a Data of its tensors first."
        )
    return data, name


def _refuse_unusable(data: Any, where: str) -> None:
    if data.edge_attr is not None:
        raise DataError(
            f"{where}: edge_attr holds edge features, which Laconic cannot use yet. Remove it (del data.edge_attr); or "
            f"rename it, if it is one weight per edge: data.edge_weight = data.edge_attr.view(-1)."
        )
    if data.edge_index is None and "adj_t" in data:
        raise DataError(f"{where}: adj_t cannot be used; keep edge_index (leave out the transform ToSparseTensor).")


def _masks(data: Any, split: int, where: str) -> dict[str, Tensor] | None:
    missing = [f"{name}_mask" for name in SPLITS if f"{name}_mask" not in data]
    if len(missing) == len(SPLITS):
        return None
    if missing:
        raise DataError(f"{where} lacks {', '.join(missing)}. Give it all three masks, or none for a random split.")
    masks = {}
    for name in SPLITS:
        mask = data[f"{name}_mask"].cpu()
        if mask.dim() == 2:
            if not 0 <= split < mask.shape[1]:
                raise DataError(f"{where}: {name}_mask has {mask.shape[1]} splits, so there is no split {split}.")
            mask = mask[:, split]
        elif split:
            raise DataError(f"{where}: {name}_mask holds one split, so there is no split {split}.")
        masks[f"{name}_mask"] = mask.contiguous()
    return masks
