"""Coverage correction alone, for a loop of your own under torch's DistributedDataParallel (DDP).

    hook = laconic.coverage_hook()
    hook.register(model)                            # or: model.register_comm_hook(hook, hook.hook)
    for batch in ...:
        loss = F.cross_entropy(model(batch.x, batch.edge_index)[: batch.size], batch.y)     # mean over the batch
        hook.set(coverage=share_of_neighbours_here, batch_size=batch.size)
        loss.backward()                             # gradients are combined by coverage

The batch-level weight of Grappa (arXiv 2602.01872): a batch that sees a small part of its nodes' neighbours counts for
little. The loss may be anything; a weight for each node needs no hook, but goes into the loss. DDP's traffic is its
own, and in no ledger of ours.
"""

import math
from typing import Literal, final, get_args

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from laconic.errors import ConfigError
from laconic.specs import unknown_name

HookCombination = Literal["self_normalised", "mean"]


def coverage_hook(
    combination: HookCombination = "self_normalised", *, process_group: dist.ProcessGroup | None = None
) -> "CoverageHook":
    """Returns a communication hook for DDP that weighs the gradients of each rank by the coverage of its batch.

    With w_k the coverage, n_k the batch size and g_k the gradient of the mean loss of rank k, gradients become

        self_normalised    sum_k n_k w_k g_k / sum_k n_k w_k    nodes count alike, and the scale of w does not matter
        mean               (1 / P) sum_k w_k g_k                ranks count alike; with w = 1, what DDP alone does

    For Horvitz and Thompson's combination, give w / rho as coverage, rho being its expectation, and choose "mean".

    Traffic: that of DDP, and an all-reduce of two numbers in each step.

    Args:
        combination: of the ranks' gradients.
        process_group: the one that DDP was given; the default group if none. `register` takes DDP's.
    """
    choices = get_args(HookCombination)
    if combination not in choices:
        raise ConfigError(unknown_name(combination, choices, family="combination"))
    return CoverageHook(combination, process_group)


@final
class CoverageHook:
    """What a hook knows of the step under way; `coverage_hook` makes it."""

    def __init__(self, combination: HookCombination, process_group: dist.ProcessGroup | None) -> None:
        self._combination = combination
        self._group = process_group
        # Of the step to come: coverage and batch size. Each is used once.
        self._batch: tuple[float, int] | None = None
        self._fault = ""
        # What gradients of the step under way are multiplied by.
        self._factor = 0.0

    def register(self, model: DistributedDataParallel) -> None:
        """Makes this the hook of a model, which has no other."""
        self._group = model.process_group
        model.register_comm_hook(self, CoverageHook.hook)

    def set(self, coverage: float, batch_size: int) -> None:
        """Tells the coverage and the number of nodes of this rank's batch: once for each step, before `backward`.

        What is wrong is said by `backward`, on all ranks together: if one alone failed here, the others would wait.

        Args:
            coverage: of the batch, 0 or more; the mean over its nodes, as a rule.
            batch_size: nodes over which the loss is a mean. 0 on a rank that has none: its gradient does not count.
        """
        if self._batch is not None:
            self._fault = (
                "`set` was called twice for one step. Call it once before each backward that combines gradients; of "
                "several batches under `no_sync`, once, for all of them."
            )
        elif not (math.isfinite(coverage) and coverage >= 0):
            self._fault = f"coverage should be a number of 0 or more, got {coverage}."
        elif not math.isfinite(batch_size) or batch_size != int(batch_size) or batch_size < 0:
            self._fault = f"batch_size should be a whole number of 0 or more, got {batch_size}."
        # As numbers: a batch may have told them as tensors, which may change.
        self._batch = (float(coverage), 0 if self._fault else int(batch_size))

    @staticmethod
    def hook(state: "CoverageHook", bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """What DDP calls for each bucket of gradients, with what was registered."""
        buffer = bucket.buffer()
        if bucket.index() == 0:
            state._begin_step(buffer.device)
        if state._factor:
            buffer.mul_(state._factor)
        else:
            # Not multiplied: the mean loss of no rows is not a number.
            buffer.zero_()
        future: torch.futures.Future[list[Tensor]] = dist.all_reduce(
            buffer, group=state._group, async_op=True
        ).get_future()
        return future.then(lambda done: done.value()[0])

    def _begin_step(self, device: torch.device) -> None:
        """Learns from all ranks what this one's gradients are multiplied by; raises on all of them if any has a fault.

        One all-reduce per step, which is waited for: buckets travel with their factor in them.
        """
        batch, fault = self._batch, self._fault
        self._batch, self._fault = None, ""
        if batch is None:
            fault = "`set` was not called for this step. Call it before each backward that combines gradients."
        weight = 0.0 if batch is None or fault else batch[0] * batch[1]
        sums = torch.tensor([weight, 1.0 if fault else 0.0], dtype=torch.float64, device=device)
        dist.all_reduce(sums, group=self._group)
        total, num_faults = sums.tolist()
        if fault:
            raise ConfigError(f"coverage_hook: {fault}")
        if num_faults:
            raise ConfigError(
                f"coverage_hook: {num_faults:.0f} of {dist.get_world_size(self._group)} ranks did not say the coverage "
                f"of their batch. Look at their output."
            )
        if not total > 0:
            raise ConfigError(
                "coverage_hook: every rank's batch is empty or has coverage 0, so this step's gradients would be 0. "
                "Give each step a batch with neighbours, or shrink coverage towards 1."
            )
        assert batch is not None
        self._factor = self._share(*batch, total)

    def _share(self, coverage: float, batch_size: int, total: float) -> float:
        if self._combination == "self_normalised":
            return coverage * batch_size / total
        # As DDP does: gradients are divided before they are added up.
        return coverage / dist.get_world_size(self._group) if batch_size else 0.0
