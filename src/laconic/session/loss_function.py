"""LossFunction: a user's loss, which can be asked for a sum, a mean, or one number per node.

Torch's functions and modules can be asked, partials of them, and one's own that have a `reduction`.
Any other function of one's own is called as it is.
"""

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from laconic.errors import ConfigError

_REDUCTIONS = ("mean", "sum", "none", "batchmean")
_SHORT_FLOATS = (torch.bfloat16, torch.float16)
# Those of torch that take one class number per node.
_OF_CLASSES = ("cross_entropy", "nll_loss", "multi_margin_loss", "CrossEntropyLoss", "NLLLoss", "MultiMarginLoss")


@final
@dataclass(frozen=True)
class LossFunction:
    """A loss of outputs and labels.

    Args:
        function: takes (out, y).
        name: what it is called in messages.
        reduction: the one that the user chose; None: the function takes none.
        is_torchs: whether it is one of torch's own.
    """

    function: Callable[..., Any]
    name: str
    reduction: str | None
    is_torchs: bool

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "LossFunction":
        """Returns what a user handed over as a loss; raises ConfigError if it is none."""
        if not callable(function):
            raise ConfigError(
                f"The first argument of session.loss should be a loss function such as F.cross_entropy, got a "
                f"{type(function).__name__}. The loss itself is taken by session.loss."
            )
        plain: Any = function
        while isinstance(plain, functools.partial):
            if plain.keywords.get("size_average") is not None or plain.keywords.get("reduce") is not None:
                raise ConfigError("size_average and reduce are torch's old names. Give reduction='mean' or 'sum'.")
            plain = plain.func
        is_module = isinstance(plain, nn.Module)
        name = type(plain).__name__ if is_module else getattr(plain, "__name__", type(plain).__name__)
        home = type(plain).__module__ if is_module else getattr(plain, "__module__", None)
        reduction = getattr(function, "reduction", None) if is_module else _reduction_of(function)
        if reduction is not None and reduction not in _REDUCTIONS:
            raise ConfigError(
                f"{name} has reduction={reduction!r}, which ranks cannot share. Use 'mean', 'sum' or 'none'."
            )
        return cls(function, name, reduction, (home or "").startswith("torch.nn."))

    def ask(self, out: Tensor, y: Tensor, reduction: str | None) -> Any:
        """Returns the loss by a reduction other than the user's; None: as it comes."""
        function: Any = self.function
        arguments: dict[str, str] = {}
        if isinstance(function, nn.Module) and reduction is not None:
            # Shallow: its weights stay the user's own.
            function = copy.copy(function)
            function.reduction = reduction
        elif reduction is not None:
            arguments["reduction"] = reduction
        if not self.is_torchs:
            return function(out, y, **arguments)
        try:
            return function(out, y, **arguments)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            reason = str(error).rstrip(".")
            raise ConfigError(
                f"{self.name} cannot be taken of outputs {_kind(out)} and labels {_kind(y)}: {reason}. Labels should "
                f"be class numbers below the number of outputs per node, or one 0 or 1 for each output."
            ) from error

    def fit(self, out: Tensor, y: Tensor) -> tuple["LossFunction", Tensor, Tensor]:
        """Returns the loss, outputs and labels in types that fit each other.

        Labels that stand beside one output each become numbers of its type, as torch's losses want
        them; functions of one's own get the labels as they are. Outputs of 16 bits become float32:
        a sum over many nodes has no room in 16.
        """
        if not self.is_torchs:
            return self, out.float() if out.dtype in _SHORT_FLOATS else out, y
        if self.name in _OF_CLASSES:
            if out.dim() < 2:
                raise ConfigError(
                    f"{self.name} takes one output per node and class, (nodes, classes); got {_kind(out)}. For one "
                    f"output per node and two classes use F.binary_cross_entropy_with_logits."
                )
        elif out.shape != y.shape:
            raise ConfigError(
                f"{self.name} compares each output with one label, but outputs are {_kind(out)} and labels {_kind(y)}. "
                f"{_advice(out, y)}"
            )
        wide = self
        if out.dtype in _SHORT_FLOATS:
            wide, out = self._widened(), out.float()
        if out.shape == y.shape:
            y = y.to(out.dtype)
        return wide, out, y

    def check_constant(self) -> None:
        """Raises ConfigError if weights of the loss are trained: ranks would train them apart."""
        if any(tensor.requires_grad for tensor in self._tensors()):
            raise ConfigError(
                f"A weight of {self.name} needs gradients. Ranks would train it apart, and the mean divides by it. "
                f"Detach it; or put it into the model, and give a loss that returns one number per node."
            )

    def _tensors(self) -> Iterator[Tensor]:
        function: Any = self.function
        while isinstance(function, functools.partial):
            yield from (value for value in (*function.args, *function.keywords.values()) if isinstance(value, Tensor))
            function = function.func
        if isinstance(function, nn.Module):
            yield from (*function.parameters(), *function.buffers())

    def _widened(self) -> "LossFunction":
        """Returns the loss with its own weights in float32."""
        function: Any = self.function
        if isinstance(function, nn.Module):
            function = copy.deepcopy(function).float()
        elif isinstance(function, functools.partial):
            wide = {key: _as_float32(value) for key, value in function.keywords.items()}
            function = functools.partial(function.func, *map(_as_float32, function.args), **wide)
        return LossFunction(function, self.name, self.reduction, self.is_torchs)


def _reduction_of(function: Callable[..., Any]) -> str | None:
    """Returns the reduction of a function that is called without one; None if it takes none."""
    if isinstance(function, functools.partial) and "reduction" in function.keywords:
        return str(function.keywords["reduction"])
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    if "reduction" in parameters:
        default = parameters["reduction"].default
        return default if isinstance(default, str) else "mean"
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return "mean" if takes_any else None


def _as_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _SHORT_FLOATS else value


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _advice(out: Tensor, y: Tensor) -> str:
    if y.dim() == 1 and out.dim() == 2 and out.shape[1] == 1:
        return "Give out.squeeze(1)."
    if y.dim() == 1:
        return "For class numbers use F.cross_entropy, or one output per node."
    return f"The model should have {y.shape[1]} outputs per node."
