"""Functions that torch.compile leaves alone: it cannot look into our kernels, nor into exchanges between ranks."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

_REASON = (
    "Laconic's kernels and exchanges are not compiled: leave fullgraph=True out, or compile parts of the model that "
    "hold no convolution"
)


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function`, which inside of torch.compile runs as it is.

    torch.compiler.disable does this, and takes a second to load the compiler: it is asked once that is there.
    """
    disabled: list[Callable[..., Any]] = []

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function, reason=_REASON))  # type: ignore[no-untyped-call]
        return disabled[0](*args, **kwargs)

    return run
