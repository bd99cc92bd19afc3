"""Scope: what the layers of an attached model share: the shard in use, its aggregator, and the keys of randomness."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn, final

import numpy as np
from torch import Tensor

from laconic.attach.aggregator import Aggregator
from laconic.attach.checkpointing import is_in_backward
from laconic.attach.owned_rows import refuse_changed_epoch
from laconic.graph import Shard
from laconic.kernels.keyed import fold_key


@final
class Scope:
    """The current shard and the position in training: (seed, epoch, step, call) keys every random mask.

    One scope serves all layers of one model; layers find it as an attribute, so a deep copy of the model shares it.
    """

    no_key = np.uint64(0)

    shard: Shard
    aggregator: Aggregator
    _entered_versions: tuple[int, ...]

    def __init__(self, shard: Shard, aggregator: Aggregator, seed: int) -> None:
        self.seed = seed
        self.epoch = 0
        self.step = 0
        self.call = 0
        self.grad_enabled = False
        """Whether autograd recorded when the model was called."""
        self.edge_ends: list[Tensor] = []
        self.of_epoch: tuple[Shard, Aggregator] | None = None
        """The rows that steps of this epoch work on, where evaluation works on others; None: on the same."""
        self._epoch_versions: tuple[int, ...] = ()
        self.before_evaluation: Callable[[], object] | None = None
        """Called before a forward pass in eval mode."""
        self.before_gradients: Callable[[], None] | None = None
        """Called in a backward pass when the gradient of the model's outputs has arrived."""
        self.on_changed_rows: Callable[[object], None] | None = None
        """Called with a convolution without a kernel that hands on other rows than it was given."""
        self.layer_inputs: tuple[object, ...] = ()
        """What such a convolution was given."""
        self.is_under_way = False
        """Whether a forward pass of the whole model is under way."""
        self.is_elsewhere = False
        """Whether the pass under way is on a graph that no rank shares, with PyG's own code."""
        self.enter(shard, aggregator)

    @contextmanager
    def using(self, shard: Shard, aggregator: Aggregator) -> Iterator[None]:
        """Inside, `shard` is the one in use."""
        # The versions come back too: edges that were changed in place stay changed, whatever was used in between.
        before = (self.shard, self.aggregator, self._entered_versions, self.of_epoch)
        self.enter(shard, aggregator)
        self.of_epoch = None
        try:
            yield
        finally:
            self.shard, self.aggregator, self._entered_versions, self.of_epoch = before

    def start_epoch(self, shard: Shard, aggregator: Aggregator) -> None:
        """From now on steps work on `shard`."""
        if self.of_epoch is not None and self.of_epoch[0] is shard and not self.is_epoch_intact:
            refuse_changed_epoch()
        self.of_epoch, self._epoch_versions = (shard, aggregator), _versions(shard)

    @property
    def is_epoch_intact(self) -> bool:
        """Whether the tensors are as they were of which other ranks have copies: those of the epoch's shard."""
        if self.shard.rows_within and _versions(self.shard) != self._entered_versions:
            return False
        return self.of_epoch is None or _versions(self.of_epoch[0]) == self._epoch_versions

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Inside, the rows of the epoch are in use."""
        of_epoch = self.of_epoch
        with nullcontext() if of_epoch is None else self.using(*of_epoch):
            self.of_epoch = of_epoch
            yield

    @contextmanager
    def passing(self, *, is_training: bool) -> Iterator[None]:
        """Inside, a forward pass of the whole model is under way."""
        self.aggregator.begin(is_training=is_training)
        before, self.is_under_way = self.is_under_way, True
        try:
            yield
        finally:
            self.is_under_way = before

    def enter_layer(self, layer: Any) -> None:
        """Told by a layer that it is next."""
        if not self.is_under_way and not is_in_backward():
            # Called by itself, or in a copy of PyG's Sequential, which makes itself a forward of its own.
            self.aggregator.begin(is_training=layer.training)
        self.aggregator.enter_layer(layer.laconic_layer)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Inside, layers run PyG's own code on a graph that is not the one of the ranks."""
        self.is_elsewhere = True
        try:
            yield
        finally:
            self.is_elsewhere = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, a forward pass does not count as a step: it draws the random masks of the step to come."""
        step = self.step
        try:
            yield
        finally:
            self.step = step

    @property
    def runs_once(self) -> bool:
        """Whether a convolution that is run again in the backward pass would not find its rows."""
        return self.of_epoch is not None or self.aggregator.counts_calls

    def enter(self, shard: Shard, aggregator: Aggregator) -> None:
        """From now on `shard` is the one in use."""
        self.shard = shard
        self.aggregator = aggregator
        self._entered_versions = _versions(shard)

    def next_key(self) -> np.uint64:
        """Returns the key of the next random mask in this step; layers call it in the order of the model."""
        self.call += 1
        return fold_key(self.seed, self.epoch, self.step, self.call)

    def owns_edges(self, edge_index: object) -> bool:
        """Whether `edge_index` is the shard's own tensor, unchanged since the shard was entered."""
        own = self.shard.edge_index
        return edge_index is own and _version(own) == self._entered_versions[1]

    def owns_weights(self, edge_weight: object) -> bool:
        """Whether `edge_weight` is the shard's own, unchanged, and needs no gradient."""
        own = self.shard.edge_weight
        return (
            own is not None
            and edge_weight is own
            and _version(own) == self._entered_versions[2]
            and not own.requires_grad
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "Scope":
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A model that is attached to a graph cannot be pickled. Save model.state_dict() instead: its keys are "
            "PyG's own and load into a plain model."
        )


def _versions(shard: Shard) -> tuple[int, ...]:
    tensors = (shard.x, shard.edge_index, shard.edge_weight)
    return tuple(_version(tensor) for tensor in tensors if tensor is not None)


def _version(tensor: Tensor) -> int:
    # A batch drawn in inference mode counts no changes.
    return -1 if tensor.is_inference() else tensor._version
