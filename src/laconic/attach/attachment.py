"""attach: hangs our operators on the convolutions of a model, and keyed dropout on its forward pass.

Nothing of the model changes but the bound method `forward` of the model and of its convolutions, set on the instances:
parameters, state_dict keys, hooks, classes and deep copies stay what they were, and `detach` takes it all back.
"""

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from types import MethodType
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.utils._pytree import tree_leaves
from torch_geometric.nn import MessagePassing

from laconic.attach.aggregator import Aggregator, LocalAggregator
from laconic.attach.checkpointing import is_run_twice, refuse_second_run
from laconic.attach.convolutions import CONVOLUTIONS
from laconic.attach.dropout import KeyedDropout, is_watcher, watch_edges
from laconic.attach.forward import plain_forward, signature_of
from laconic.attach.norms import is_over_nodes, norm_forward
from laconic.attach.owned_rows import (
    check_epoch_inputs,
    owned_rows,
    placed_inputs,
    refuse_changed_epoch,
    refuse_input_gradients,
)
from laconic.attach.scope import Scope
from laconic.attach.shared import NOT_ROWS, is_of_another_graph, is_sharer, refuse_call, share_rows, shared_forward
from laconic.attach.trimming import TrimmedRows
from laconic.attach.uncompiled import uncompiled
from laconic.errors import ConfigError
from laconic.graph import Shard

logger = logging.getLogger(__name__)


@final
class Attachment:
    """A model and the shard it is attached to."""

    def __init__(self, model: nn.Module, shard: Shard, scope: Scope) -> None:
        self.model = model
        self.shard = shard
        self._scope = scope

    def start_epoch(self, epoch: int, step: int = 0) -> None:
        """Sets the position that keys random masks; each training forward pass after it counts one step."""
        self._scope.epoch, self._scope.step = epoch, step

    @contextmanager
    def using(self, batch: Shard, aggregator: Aggregator | None = None) -> Iterator[Shard]:
        """Inside, the model's convolutions work on `batch`: by default a mini-batch, which is used once."""
        with self._scope.using(batch, aggregator or LocalAggregator(batch, remember_inputs=False)):
            yield batch

    @contextmanager
    def ahead_of_step(self, shard: Shard, aggregator: Aggregator) -> Iterator[None]:
        """Inside, a forward pass works on `shard` and draws the random masks of the step to come; it is no step."""
        with self._scope.using(shard, aggregator), self._scope.aside():
            yield

    def move_to(self, shard: Shard, aggregator: Aggregator) -> None:
        """From now on the model works on `shard` in place of the one that it was attached to."""
        self.shard = shard
        self._scope.enter(shard, aggregator)

    def train_on(self, shard: Shard, aggregator: Aggregator) -> Shard:
        """From now on the model is called on `shard`, whose first rows are the owned ones; returns it.

        Training passes work on its rows with `aggregator`. Evaluation stays exact, see `owned_rows.py`.
        """
        self.shard = shard
        self._scope.start_epoch(shard, aggregator)
        return shard

    def call_before_evaluation(self, function: Callable[[], object]) -> None:
        """From now on `function` is called before each forward pass in eval mode."""
        self._scope.before_evaluation = function

    def call_before_gradients(self, function: Callable[[], None]) -> None:
        """From now on `function` is called in each backward pass of training before it enters the model."""
        self._scope.before_gradients = function

    def call_on_changed_rows(self, function: Callable[[object], None]) -> None:
        """From now on `function` is called with a convolution without a kernel that hands on rows it has changed."""
        self._scope.on_changed_rows = function

    def detach(self) -> nn.Module:
        """Gives the model back as it was before `attach`; one that was attached elsewhere since then stays there."""
        if self.model.__dict__.get("laconic_scope") is self._scope:
            _take_back(self.model)
        return self.model


def attach(model: nn.Module, shard: Shard, *, seed: int = 0, aggregator: Aggregator | None = None) -> Attachment:
    """Makes `model` run on our kernels for `shard`, in place.

    Args:
        model: any PyG model. Its convolutions run on our kernels when called with `shard.edge_index` itself (and
            `shard.edge_weight` itself, or none); one that has no kernel, or is given other edges, runs PyG's own code.
        shard: the graph, `Shard.whole(graph)` on one machine.
        seed: keys dropout.
        aggregator: a strategy's own; by default everything is local.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise ConfigError(
            "attach takes a plain torch module, got a scripted one. Attach before scripting, or not at all."
        )
    if any("laconic_scope" in module.__dict__ for module in model.modules()):
        raise ConfigError(
            "This model, or a part of it, is attached to a graph already. Call session.detach() first (or detach() on "
            "its attachment)."
        )
    if getattr(model.__dict__.get("forward", model.forward), "__self__", None) is not model:
        raise ConfigError(
            f"The forward method of this {type(model).__name__} was replaced on the instance (by torch.compile or a "
            f"patch), so attach cannot follow it. Attach the plain model first, and then torch.compile(model)."
        )
    scope = Scope(shard, aggregator or LocalAggregator(shard, remember_inputs=True), seed)
    layer = -1
    for module in model.modules():
        if isinstance(module, MessagePassing):
            layer += 1
            _attach_convolution(module, scope, layer)
        elif scope.aggregator.is_shared and is_over_nodes(module):
            # Counted with the convolution before it.
            _mark(module, scope, layer)
            _set_forward(module, _norm_forward)
    # Set last: the model may be a convolution itself, whose forward pass is then wrapped once more.
    model.__dict__["laconic_scope"] = scope
    _set_forward(model, _model_forward)
    return Attachment(model, shard, scope)


def _attach_convolution(conv: MessagePassing, scope: Scope, layer: int) -> None:
    _mark(conv, scope, layer)
    if scope.aggregator.is_shared:
        share_rows(conv)
    watch_edges(conv)
    reason = why_no_kernel(conv)
    if reason is not None:
        _log_once(type(conv).__name__, reason)
        if scope.aggregator.is_shared:
            _set_forward(conv, _shared_forward)
        return
    conv.__dict__["laconic_convolution"] = CONVOLUTIONS[type(conv)]
    _set_forward(conv, _convolution_forward)


def why_no_kernel(conv: MessagePassing) -> str | None:
    """Returns why `conv` runs PyG's own code, or None if one of our kernels stands for it."""
    convolution = CONVOLUTIONS.get(type(conv))
    if "laconic_convolution" in conv.__dict__:
        return None
    return "there is no kernel for it" if convolution is None else _refuse(conv) or convolution.refuse(conv)


def detached_copy(model: nn.Module) -> nn.Module:
    """Returns a copy of `model`, attached or not, that is attached to nothing."""
    duplicate = copy.deepcopy(model)
    _take_back(duplicate)
    return duplicate


def release(model: nn.Module) -> None:
    """Gives `model` back as it was before `attach`, if it is attached as a whole; parts of another one stay."""
    if _forward_of(model) is _model_forward:
        _take_back(model)


def _take_back(model: nn.Module) -> None:
    """Undoes `attach`."""
    for module in model.modules():
        if isinstance(module, MessagePassing):
            _remove_hooks(module)
        if _forward_of(module) in _OURS:
            del module.__dict__["forward"]
        plain = module.__dict__.pop("laconic_plain", None)
        if plain is not None:
            module.__dict__["forward"] = plain
        for name in ("laconic_scope", "laconic_convolution", "laconic_layer"):
            module.__dict__.pop(name, None)


def _set_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    # Twice on a model that is a convolution itself.
    module.__dict__.setdefault("laconic_plain", module.__dict__.get("forward"))
    module.__dict__["forward"] = MethodType(forward, module)


def _forward_of(module: nn.Module) -> object:
    """Returns the function that was set as `forward` on the instance, if any."""
    return getattr(module.__dict__.get("forward"), "__func__", None)


def _mark(module: nn.Module, scope: Scope, layer: int) -> None:
    module.__dict__["laconic_scope"] = scope
    module.__dict__["laconic_layer"] = layer


def _refuse(conv: MessagePassing) -> str | None:
    if "forward" in conv.__dict__:
        return "its forward method was replaced on the instance"
    if conv.flow != "source_to_target":
        return f"its flow is {conv.flow!r}"
    if conv.decomposed_layers > 1:
        return "it is decomposed"
    return None


@cache
def _log_once(name: str, reason: str) -> None:
    logger.info("%s runs PyG's own code: %s.", name, reason)


def _kernel_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    scope: Scope = self.laconic_scope
    if scope.is_elsewhere:
        return type(self).forward(self, *args, **kwargs)
    if scope.runs_once:
        refuse_second_run(type(self).__name__)
    given = signature_of(type(self).forward).bind(self, *args, **kwargs).arguments
    reason = _misfit(self, scope, given)
    if reason is not None and scope.aggregator.is_shared:
        refuse_call(self, reason)
    if reason is not None:
        _log_once(type(self).__name__, reason)
        return type(self).forward(self, *args, **kwargs)
    scope.enter_layer(self)
    weighted = given.get("edge_weight") is not None
    return self.laconic_convolution.forward(self, scope, given["x"], weighted)


def _misfit(conv: Any, scope: Scope, given: dict[str, Any]) -> str | None:
    """Returns why this call is not the plain one that the kernel stands for, or None.

    The plain one has the graph's own edges, one row of features per node, and nothing special.
    """
    if torch._C._get_tracing_state() is not None:
        return "it is being traced"
    if not scope.owns_edges(given["edge_index"]):
        return "it was called with an edge_index other than the graph's own"
    if not _is_rows(given["x"], scope.shard):
        return NOT_ROWS
    for name, value in given.items():
        if name in ("self", "x", "edge_index") or value is None:
            continue
        if name != "edge_weight" or not scope.owns_weights(value):
            return f"it was called with {name}" + (" other than the graph's own" if name == "edge_weight" else "")
    if conv.explain or _has_hooks(conv):
        return "its message passing is being watched"
    if _is_lazy(conv):
        return "its first call gives it its shape"
    if conv.training and getattr(conv, "dropout", 0) > 0 and is_run_twice(scope.grad_enabled):
        return "its dropout has to be repeated by an activation checkpoint"
    return None


def _is_rows(x: object, shard: Shard) -> bool:
    return (
        isinstance(x, Tensor)
        and x.dim() == 2
        and shard.hop_of(len(x)) is not None
        and x.is_floating_point()
        and x.layout == torch.strided
    )


def _has_hooks(conv: Any) -> bool:
    """Whether somebody watches the steps inside PyG's message passing, which the kernel does not take."""
    return any(not _is_ours(hook) for hooks in _hook_tables(conv) for hook in hooks.values())


def _is_ours(hook: object) -> bool:
    return is_watcher(hook) or is_sharer(hook)


def _hook_tables(conv: Any) -> list[dict[int, Any]]:
    steps = ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
    return [getattr(conv, f"_{step}_forward{kind}_hooks") for step in steps for kind in ("_pre", "")]


def _remove_hooks(conv: Any) -> None:
    for hooks in _hook_tables(conv):
        for number in [number for number, hook in hooks.items() if _is_ours(hook)]:
            del hooks[number]


def _is_lazy(conv: nn.Module) -> bool:
    return any(isinstance(parameter, UninitializedParameter) for parameter in conv.parameters())


def _keyed_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    scope: Scope = self.laconic_scope
    if not scope.is_epoch_intact:
        refuse_changed_epoch()
    return _step(self, scope, *args, **kwargs) if self.training else _evaluate(self, scope, *args, **kwargs)


def _evaluate(self: Any, scope: Scope, *args: Any, **kwargs: Any) -> Any:
    if scope.before_evaluation is not None:
        scope.before_evaluation()
    is_another = scope.aggregator.is_shared and is_of_another_graph(scope.shard, args, kwargs)
    if scope.of_epoch is not None:
        shard = scope.of_epoch[0]
        is_part = shard.adjacency.num_edges != scope.shard.adjacency.num_edges
        is_another = is_another and is_of_another_graph(shard, args, kwargs, is_part=is_part)
        args, kwargs = placed_inputs(shard, scope.shard, args, kwargs)
    if is_another:
        with scope.elsewhere():
            return plain_forward(self)(self, *args, **kwargs)
    return _owned_outputs(self, scope, nullcontext(), *args, **kwargs)


def _step(self: Any, scope: Scope, *args: Any, **kwargs: Any) -> Any:
    with scope.stepping():
        if scope.of_epoch is not None:
            check_epoch_inputs(scope.shard, (*args, *kwargs.values()))
        try:
            out = _owned_outputs(self, scope, KeyedDropout(scope), *args, **kwargs)
            _watch_gradients(out, scope)
            return out
        finally:
            scope.grad_enabled = False
            scope.step += 1


def _owned_outputs(self: Any, scope: Scope, mode: AbstractContextManager[object], *args: Any, **kwargs: Any) -> Any:
    """Returns what a forward pass of the model on the shard in use gives for the owned rows."""
    refuse_input_gradients(scope.shard, (*args, *kwargs.values()))
    with scope.passing(is_training=self.training):
        scope.call, scope.grad_enabled = 0, self.training and torch.is_grad_enabled()
        scope.edge_ends.clear()
        with mode, _trimming(scope):
            return owned_rows(scope.shard, _inner_forward(self, scope)(self, *args, **kwargs))


def _trimming(scope: Scope) -> AbstractContextManager[object]:
    return TrimmedRows(scope.shard) if scope.shard.rows_within else nullcontext()


def _watch_gradients(out: Any, scope: Scope) -> None:
    """Has `scope.before_gradients` called when a gradient of any tensor in `out` arrives."""
    function = scope.before_gradients
    if function is None or not torch.is_grad_enabled():
        return
    for tensor in tree_leaves(out):
        # A leaf, such as a weight that the model returns too, is no output of it, and would keep the hook for good.
        if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
            tensor.register_hook(lambda gradient: function())  # type: ignore[no-untyped-call]


def _inner_forward(model: Any, scope: Scope) -> Callable[..., Any]:
    """Returns what `_keyed_forward` was set over: the model may be a convolution or a norm itself."""
    if hasattr(model, "laconic_convolution"):
        return _kernel_forward
    if scope.aggregator.is_shared and isinstance(model, MessagePassing):
        return shared_forward
    return plain_forward(model)


_convolution_forward = uncompiled(_kernel_forward)
_model_forward = uncompiled(_keyed_forward)
_shared_forward = uncompiled(shared_forward)
_norm_forward = uncompiled(norm_forward)
_OURS = (_convolution_forward, _model_forward, _shared_forward, _norm_forward)
