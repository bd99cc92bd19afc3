"""PlacedStrategy: what strategies have in common whose ranks place their shards once and take every step together."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor, nn

from laconic.attach import Attachment, attach
from laconic.attach.aggregator import Aggregator
from laconic.gradients.first_weights import copy_from_first
from laconic.gradients.shared import SharedGradients
from laconic.graph import Shard
from laconic.sharded.grid_placement import GridPlacement
from laconic.sharded.placement import Placement
from laconic.strategies._checks import check_only_model
from laconic.strategies.base import Strategy

Holding = TypeVar("Holding", Placement, GridPlacement)


class RunCoder(Protocol):
    """Codes the messages of a run, and has to be remembered with it."""

    def start_epoch(self, epoch: int, step: int) -> None: ...

    def state(self) -> dict[str, Any]: ...

    def load_state(self, state: dict[str, Any]) -> None: ...

    def tensors(self) -> dict[str, Tensor]: ...

    def load_tensors(self, tensors: dict[str, Tensor]) -> None: ...


Coding = TypeVar("Coding", bound=RunCoder)


@dataclass(eq=False)
class PlacedStrategy(Strategy, Generic[Holding, Coding]):
    """Ranks hold a placement each, and share losses and gradients; messages may be coded."""

    _placement: Holding | None = field(default=None, init=False, repr=False)
    _attachment: Attachment | None = field(default=None, init=False, repr=False)
    _gradients: SharedGradients | None = field(default=None, init=False, repr=False)
    _coder: Coding | None = field(default=None, init=False, repr=False)

    @property
    def placement(self) -> Holding:
        """What this rank holds."""
        assert self._placement is not None, "place comes first"
        return self._placement

    def with_features(self, x: Tensor, prepare: Callable[[Tensor], Tensor]) -> Shard:
        self._placement = replace(self.placement, shard=replace(self.placement.shard, x=x))
        return self._placement.shard

    @property
    def num_train(self) -> int:
        return self.placement.num_train

    def attach(self, model: nn.Module, shard: Shard, *, seed: int) -> Attachment:
        placement = self.placement
        assert shard is placement.shard, "the shard comes from `place`"
        check_only_model(self._gradients is None, placement.communicator)
        copy_from_first(model, placement.communicator)
        self._gradients = SharedGradients(model, placement.communicator)
        self._coder = self._build_coder(model, seed, self._gradients)
        self._attachment = attach(model, shard, seed=seed, aggregator=self._build_aggregator())
        if placement.communicator.num_ranks > 1:
            self._attachment.call_before_gradients(self._gradients.shared_pass.check)
        return self._attachment

    def start_epoch(self, epoch: int, step: int = 0) -> Shard:
        assert self._attachment is not None, "attach comes before the first epoch"
        self._attachment.start_epoch(epoch, step)
        if self._coder is not None:
            self._coder.start_epoch(epoch, step)
        return self._attachment.shard

    def share_loss(self, total: Tensor, weight: float | None = None) -> Tensor:
        assert self._gradients is not None, "attach comes before the first loss"
        return self._gradients.share(total, weight)

    def state(self) -> dict[str, Any]:
        return {} if self._coder is None else self._coder.state()

    def load_state(self, state: dict[str, Any]) -> None:
        if self._coder is not None:
            self._coder.load_state(state)

    def tensors(self) -> dict[str, Tensor]:
        return {} if self._coder is None else self._coder.tensors()

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        if self._coder is not None:
            self._coder.load_tensors(tensors)

    @abstractmethod
    def _build_coder(self, model: nn.Module, seed: int, gradients: SharedGradients) -> Coding | None:
        """Returns what codes the messages of a run, or None where they go as they are; all ranks call it together."""

    @abstractmethod
    def _build_aggregator(self) -> Aggregator:
        """Returns what runs the aggregations, through the coder if there is one."""
