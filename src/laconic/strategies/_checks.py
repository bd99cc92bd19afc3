"""What no strategy can train, refused by name: better a sentence now than a wrong result or a traceback later."""

import inspect
import math
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch_geometric.nn import MessagePassing

from laconic.attach.fixed_operators import why_not_recompute
from laconic.attach.forward import needs_edge_weight
from laconic.comm.codecs import is_coded, parse_codec
from laconic.comm.message_sizes import CODABLE
from laconic.comm.schedules import parse_schedule
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.graph import Shard
from laconic.specs import unknown_name

if TYPE_CHECKING:
    from laconic.sharded.cover import EdgePlace
    from laconic.sharded.placement import Placement
    from laconic.strategies.exchange import Exchange
    from laconic.strategies.full_graph import FullGraph

# By name, because some of these need packages that are not there, and others moved between versions of PyG.
_HETEROGENEOUS = frozenset(
    {
        "HeteroConv",
        "HGTConv",
        "HANConv",
        "HEATConv",
        "RGCNConv",
        "FastRGCNConv",
        "RGATConv",
        "HeteroLinear",
        "HeteroDictLinear",
        "ToHeteroModule",
        "ToHeteroMessagePassing",
    }
)
_OF_EDGE_FEATURES = frozenset({"GINEConv", "NNConv", "ECConv", "GMMConv", "SplineConv", "CFConv"})
_WRAPPERS = frozenset({"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "OptimizedModule"})
_FOREIGN_ARGUMENTS = frozenset({"x_dict", "edge_index_dict", "edge_type", "edge_label_index", "pos"})


def check_plain_model(model: nn.Module, shard: Shard) -> None:
    """Raises UnsupportedModelError unless `model` is a plain module for the nodes and edges of one kind of `shard`."""
    _check_kind(model)
    _check_arguments(model)
    for name, module in model.named_modules():
        _check_part(name or "the model", module)
    _check_parameters(model, shard)


def check_schedule(codec: str, schedule: str) -> None:
    """Raises ConfigError unless both are known, and the schedule can go by what the codec lets it know."""
    is_known, needs_measured = parse_codec(codec).is_known_to_sender, parse_schedule(schedule).needs_measured
    if needs_measured and not is_known:
        raise ConfigError(
            f"schedule {schedule} goes by the error that senders measure, and with codec {codec} they do "
            f"not know what receivers have. Use error_feedback instead, or another schedule."
        )


EDGES = ("auto", "destination", "source", "cover")


def check_edges(edges: str) -> None:
    """Raises ConfigError unless `edges` names a placement of edges."""
    if edges not in EDGES:
        raise ConfigError(unknown_name(edges, EDGES, family="edge placement"))


def edges_for(settings: "Exchange | FullGraph", model: nn.Module, num_ranks: int) -> "EdgePlace":
    """Returns where edges between ranks are to lie: with their destination where a codec writes rows of attention."""
    if settings.edges != "auto":
        return settings.edges
    return "destination" if is_coded(settings.codec, num_ranks) and why_not_recompute(model) is not None else "cover"


def check_coded(model: nn.Module, placement: "Placement", codec: str) -> None:
    """Raises where rows have a type, or edges a place, that a codec is not for."""
    if not is_coded(codec, placement.communicator.num_ranks):
        return
    dtype, reason = placement.shard.x.dtype, why_not_recompute(model)
    if dtype not in CODABLE:
        raise ConfigError(
            f"codec {codec} is for rows of float32 or float64, and these are {dtype}, which would travel as they are. "
            f"Use the codec identity; or train in float32, with the features and the model in it."
        )
    if reason is not None and placement.is_covered:
        raise UnsupportedModelError(
            f"Edges that do not lie with their destination make partial sums of fixed matrices, which codec {codec} "
            f"writes, and {reason}. Use edges=destination, or the codec identity."
        )


def check_link(link_mbit: float, strategy: str) -> None:
    """Raises ConfigError unless the speed of a link is one."""
    if not 0 < link_mbit < math.inf:
        raise ConfigError(f"{strategy}: link_mbit should be above 0, such as 1000; got {link_mbit}.")


def _check_kind(model: nn.Module) -> None:
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        _refuse(f"The model should be a torch.nn.Module; got {kind}.")
    if isinstance(model, torch.jit.ScriptModule):
        _refuse(f"{kind} is TorchScript, whose layers cannot be reached. Give the model as it was before torch.jit.")
    if kind in _WRAPPERS:
        inside = "_orig_mod" if kind == "OptimizedModule" else "module"
        then = " and then torch.compile(model)" if kind == "OptimizedModule" else ""
        _refuse(
            f"The model is wrapped in {kind}, which hides its layers. Give the model inside it: "
            f"session.attach(model.{inside}){then}."
        )
    if isinstance(model, torch.fx.GraphModule):
        _refuse(
            f"{kind} was made by torch.fx (to_hetero does this), whose calls are fixed. Heterogeneous graphs are not "
            f"supported yet; give the homogeneous model itself."
        )


def _check_arguments(model: nn.Module) -> None:
    signature = inspect.signature(model.forward)
    parameters = list(signature.parameters.values())
    named = [p.name for p in parameters[:2]] + [p.name for p in parameters[2:] if p.default is p.empty]
    foreign = sorted(_FOREIGN_ARGUMENTS.intersection(named))
    if foreign:
        _refuse(
            f"{type(model).__name__}.forward asks for {', '.join(foreign)}. Laconic trains models for node "
            f"classification that are called as model(x, edge_index); heterogeneous graphs, positions and link tasks "
            f"are not supported yet."
        )
    weight = {"edge_weight": None} if needs_edge_weight(model) else {}
    try:
        signature.bind(None, None, **weight)
    except TypeError as error:
        cure = "Wrap it in a module whose forward(self, x, edge_index) calls it."
        if [p.name for p in parameters] in (["data"], ["batch"], ["graph"]):
            data = parameters[0].name
            cure = f"Write forward(self, x, edge_index), with x for {data}.x and edge_index for {data}.edge_index."
        _refuse(f"{type(model).__name__} cannot be called as model(x, edge_index): {error}. {cure}")


def _check_part(name: str, module: nn.Module) -> None:
    kind = type(module).__name__
    if kind in _HETEROGENEOUS:
        _refuse(
            f"{name} is a {kind}, for edges or nodes of several kinds; heterogeneous graphs are not supported yet. "
            f"Use a convolution for one kind, such as SAGEConv or GATConv."
        )
    if not isinstance(module, MessagePassing):
        return
    required = [p.name for p in inspect.signature(module.forward).parameters.values() if p.default is p.empty]
    if kind in _OF_EDGE_FEATURES or "edge_attr" in required or getattr(module, "edge_dim", None) is not None:
        _refuse(
            f"{name} is a {kind} with edge features, which a graph here does not have yet. "
            f"Leave edge_dim out, or use a convolution without edge features."
        )
    if "edge_type" in required:
        _refuse(f"{name} is a {kind} for edges of several kinds; heterogeneous graphs are not supported yet.")


def _check_parameters(model: nn.Module, shard: Shard) -> None:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        _refuse(f"{type(model).__name__} has no parameter that requires a gradient, so there is nothing to train.")
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            _refuse(f"Parameter {name} has no shape yet (in_channels=-1). Call the model once, or give the width.")
        if parameter.is_floating_point() and parameter.dtype != shard.x.dtype:
            _refuse(
                f"Parameter {name} is {parameter.dtype}, but the features are {shard.x.dtype}. "
                f"Convert the model with model.to({shard.x.dtype})."
            )
        if parameter.device != shard.x.device:
            _refuse(f"Parameter {name} is on {parameter.device}, but the features are on {shard.x.device}.")


def _refuse(message: str) -> NoReturn:
    raise UnsupportedModelError(message)
