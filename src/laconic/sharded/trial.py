"""Whether a model can be shared by ranks: it is tried on a tiny graph, whole and split in two, and both are compared.

A convolution that runs PyG's own code is right over several ranks if it looks at the graph through its messages alone;
one that counts degrees or nodes on the way is not. Nothing about a class says which. So the whole model runs, and the
rows that each convolution gives are compared where the rows that it got are equal.
"""

from dataclasses import dataclass
from types import FunctionType
from typing import NoReturn, final

import torch
from torch import nn
from torch_geometric.nn import MessagePassing
from torch_geometric.nn import norm as pyg

from laconic.attach import detached_copy, is_over_nodes, why_no_kernel
from laconic.attach.convolutions import CONVOLUTIONS
from laconic.attach.norms import NORMS
from laconic.errors import LaconicError, UnsupportedModelError
from laconic.graph import Graph, Shard
from laconic.sharded.tiny_run import NUM_NODES, TinyRun, difference, run_shared, run_whole, tiny_graph

_OF_NODES = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
_UNKNOWN_NORMS = (pyg.GraphSizeNorm, pyg.HeteroBatchNorm, pyg.HeteroLayerNorm)
# Functions that count edges at each node, by which a convolution normalises itself.
_DEGREES = ("degree", "gcn_norm", "get_laplacian", "cheb_norm")

# Largest differences between one machine and two ranks, of a convolution's rows and of the model's: far above rounding,
# far below what rows of one rank alone give.
_TOLERANCES = {torch.float64: (1e-9, 1e-6), torch.float32: (1e-3, 1e-3)}


@final
@dataclass(frozen=True, eq=False)
class Trial:
    """What a model gives on a tiny graph on one machine. Runs on two ranks are compared with it.

    Args:
        graph: the tiny one.
        models: in evaluation and in training, in the graph's type; they have not run.
        wholes: the run of each on one machine.
        draws: whether torch's random numbers were drawn in a run.
    """

    graph: Graph
    models: tuple[nn.Module, ...]
    wholes: tuple[TinyRun, ...]
    draws: bool

    @staticmethod
    def of(model: nn.Module, shard: Shard) -> "Trial":
        """Runs a model in float64, where rounding hides nothing; in float32 if it can run in that alone.

        Raises UnsupportedModelError for a model that cannot run, or has norms that ranks cannot share.
        """
        for name, module in model.named_modules():
            if _is_unknown_norm(module):
                raise UnsupportedModelError(
                    f"{name} is a {type(module).__name__}, whose statistics over several ranks are not known. Use "
                    f"BatchNorm, LayerNorm, GraphNorm or PairNorm, or the strategy single."
                )
        width, weighted, own = shard.x.shape[1], shard.edge_weight is not None, shard.x.dtype
        failure: tuple[bool, Exception] | None = None
        for dtype in (torch.float64, torch.float32) if own == torch.float32 else (torch.float64,):
            graph, wholes = tiny_graph(width, dtype, weighted=weighted), list[TinyRun]()
            models = tuple(_awakened(detached_copy(model).train(mode)).to(dtype) for mode in (False, True))
            with torch.random.fork_rng(devices=[]):
                before = torch.get_rng_state()
                try:
                    for tried in models:
                        wholes.append(run_whole(tried, graph))
                    return Trial(graph, models, tuple(wholes), not torch.equal(before, torch.get_rng_state()))
                except Exception as error:
                    failure = (bool(wholes), error)
        assert failure is not None
        if isinstance(failure[1], LaconicError):
            raise failure[1]
        known = own in _TOLERANCES
        advice = "" if known else f" It was tried in float64: convert with x.to(weight.dtype), not to {own}."
        raise UnsupportedModelError(
            f"{type(model).__name__} was tried on a graph of {NUM_NODES} nodes before ranks share it, and raised "
            f"{type(failure[1]).__name__} in {_when(failure[0])}: {failure[1]}.{advice} "
            f"Mend that; a model for a fixed number of nodes, or for one kind of graph, trains with the strategy "
            f"single."
        ) from failure[1]

    def why_not_hops(self, reach: int) -> str | None:
        """Returns how the model fails where rows of other ranks are computed here too; None if it is the same.

        It may write inner rows into a tensor that has outer ones, compare shapes, or mix rows in code that torch does
        not show us. So it is tried, as in `check`.
        """
        with torch.random.fork_rng(devices=[]):
            shared, error = run_shared(self.models, self.graph, reach)
        if error is not None:
            return f"it raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        is_same = all(self._gives_same(whole, parts) for whole, parts in zip(self.wholes, shared, strict=True))
        return None if is_same else "it gave other outputs"

    def check(self) -> None:
        """Raises UnsupportedModelError, naming the layer and what to do, unless the model is the same on two ranks.

        Whatever mixes the rows of nodes outside of convolutions and norms shows here: pooling, attention over all
        nodes, a mean over rows. So does what the model draws itself, of which every rank would draw its own.
        """
        with torch.random.fork_rng(devices=[]):
            if self.draws:
                self._check_repeats()
            shared, error = run_shared(self.models, self.graph)
            try:
                for model, whole, parts in zip(self.models, self.wholes, shared, strict=True):
                    if error is not None and any(part.output is None for part in parts):
                        failed = next((part.failed_in for part in parts if part.error is error), None)
                        _refuse_error(model, failed, error)
                    self._compare(model, whole, parts)
            except UnsupportedModelError:
                # What it draws by other means than torch's is not known.
                self._check_repeats()
                raise
        for name, module in _convolutions(self.models[0]).items():
            if not any(name in whole.used for whole in self.wholes) and why_no_kernel(module) is not None:
                _refuse(
                    name,
                    module,
                    "model(x, edge_index) did not use it, so it could not be tried. Take it out of the model if it is "
                    "never used",
                )

    def _compare(self, model: nn.Module, whole: TinyRun, parts: list[TinyRun]) -> None:
        _compare_calls(model, whole, parts, _TOLERANCES[self.graph.x.dtype][0])
        if not self._gives_same(whole, parts):
            raise UnsupportedModelError(
                f"{type(model).__name__} gives other outputs in {_when(model.training)} when two ranks share a tiny "
                f"graph: something in it mixes the rows of nodes outside of convolutions and norms (a mean over rows, "
                f"pooling, attention over all nodes). Take it out, or use the strategy single."
            )

    def _gives_same(self, whole: TinyRun, parts: list[TinyRun]) -> bool:
        outputs = [[part.output] for part in parts if part.output is not None]
        assert whole.output is not None
        return difference([whole.output], outputs) <= _TOLERANCES[self.graph.x.dtype][1]

    def _check_repeats(self) -> None:
        for model, whole in zip(self.models, self.wholes, strict=True):
            again = run_whole(model, self.graph).output
            if whole.output is None or again is None or not torch.equal(whole.output, again):
                raise UnsupportedModelError(
                    f"{type(model).__name__} gives other outputs each time it is called in {_when(model.training)}: it "
                    f"draws random numbers itself, and every rank would draw its own. Dropout of torch.nn is keyed, "
                    f"and the same on any number of ranks: use that, or the strategy single."
                )


def _compare_calls(model: nn.Module, whole: TinyRun, parts: list[TinyRun], tolerance: float) -> None:
    """Raises UnsupportedModelError for the first convolution that makes something else of the same rows."""
    for number, call in enumerate(whole.calls):
        shared = [part.calls[number] for part in parts if number < len(part.calls)]
        if len(shared) < len(parts) or any(other.name != call.name for other in shared):
            return
        if difference(call.inputs, [other.inputs for other in shared]) > tolerance:
            # The model has gone wrong before this convolution.
            return
        conv = _convolutions(model)[call.name]
        if not call.outputs:
            _refuse(call.name, conv, "its output is not one row per node")
        if difference(call.outputs, [other.outputs for other in shared]) > tolerance:
            _refuse_layer(call.name, conv, "its output differs when two ranks share a tiny graph")


def _refuse_error(model: nn.Module, failed_in: str | None, error: Exception) -> NoReturn:
    """Raises what became of an error that the model raises on two ranks, and on one machine does not."""
    if failed_in is None:
        if isinstance(error, LaconicError):
            raise error
        raise UnsupportedModelError(
            f"{type(model).__name__} runs on one machine, and raised {type(error).__name__} in "
            f"{_when(model.training)} when two ranks share a tiny graph: outside of convolutions it goes by edge_index "
            f"or by the number of nodes, of which a rank has a part. Leave that to convolutions, or use the strategy "
            f"single."
        ) from error
    conv = _convolutions(model)[failed_in]
    if isinstance(error, LaconicError):
        raise UnsupportedModelError(f"{failed_in}: {error}") from error
    _refuse_layer(failed_in, conv, "outside of its messages it reads edge_index, whose numbers go beyond a rank's rows")


def _refuse_layer(name: str, conv: MessagePassing, reason: str) -> NoReturn:
    """Raises what keeps a convolution from being shared, as far as it can be seen, and what to do."""
    counted = [function for function in _DEGREES if function in _names_in_code(type(conv))]
    if type(conv) in CONVOLUTIONS:
        # PyG's own, which would be shared if it were set up otherwise.
        why = why_no_kernel(conv)
        _refuse(name, conv, f"{why}, so it runs PyG's own code, which counts on the whole graph. Change that setting")
    if counted:
        _refuse(
            name,
            conv,
            f"it counts degrees itself ({', '.join(counted)}), and a rank has only the edges into its own nodes, so "
            f"degrees of other ranks' nodes come out wrong. Compute the factor of each edge once, for the whole graph, "
            f"and give it to laconic.join as edge_weight, to be multiplied in message()",
        )
    _refuse(name, conv, f"{reason}. Read neighbours in message() alone (x_j)")


def _names_in_code(kind: type) -> set[str]:
    """Returns the names that a convolution's own methods use."""
    own = kind.__mro__[: kind.__mro__.index(MessagePassing)]
    methods = [value for one in own for value in vars(one).values() if isinstance(value, FunctionType)]
    return {name for method in methods for name in method.__code__.co_names}


def _when(is_training: bool) -> str:
    return "training" if is_training else "evaluation"


def _convolutions(model: nn.Module) -> dict[str, MessagePassing]:
    return {name or "the model": part for name, part in model.named_modules() if isinstance(part, MessagePassing)}


def _awakened(model: nn.Module) -> nn.Module:
    """Adds a little to every weight: one that begins as zero would hide what lies behind it."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=random, dtype=torch.float32)
                parameter.add_((0.1 * noise / max(1, *parameter.shape[-1:]) ** 0.5).to(parameter.dtype))
    return model


def _is_unknown_norm(module: nn.Module) -> bool:
    if isinstance(module, pyg.BatchNorm):
        # With it, a rank of one node or none would leave its part of the sums out.
        return bool(module.allow_single_element)
    if is_over_nodes(module):
        return False
    # Subclasses of those we know may have a formula of their own.
    is_of_nodes = isinstance(module, (*_OF_NODES, *_UNKNOWN_NORMS, *NORMS))
    return is_of_nodes and not (isinstance(module, pyg.LayerNorm) and module.mode == "node")


def _refuse(name: str, conv: object, reason: str) -> NoReturn:
    others = ", ".join(kind.__name__ for kind in CONVOLUTIONS if kind is not type(conv))
    raise UnsupportedModelError(
        f"{name} is a {type(conv).__name__}, which several ranks cannot share: {reason}. Or use torch_geometric.nn's "
        f"own {others}; or the strategy single."
    )
