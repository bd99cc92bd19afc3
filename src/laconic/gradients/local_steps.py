"""Local steps: ranks train apart for a few steps, then average what has become of the model.

    local = LocalSteps(model, communicator, every=4, share=num_own_rows / num_rows)
    loss = local.share(total, weight)       # this rank's own mean; nothing is sent
    loss.backward(); optimizer.step()
    local.end_step()                        # every fourth one averages the parameters
    local.synchronise()                     # averages now, to be scored or saved

Lin, Stich, Patel, Jaggi, "Don't use large mini-batches, use local SGD", arXiv 1808.07217. The optimizer's moments stay
each rank's own: they are not averaged, and a run that is taken up again has those of one rank.
"""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError
from laconic.gradients.reductions._buckets import in_buckets
from laconic.gradients.shared import check_leaves, check_weight
from laconic.gradients.shared_pass import SharedPass

# Shares are quotients of whole numbers: beyond rounding, they add up to 1.
_ROUNDING = 1e-9


@final
class LocalSteps:
    """Keeps the parameters of one model apart for a few steps, and averages them. All ranks make it together.

    Traffic: `every` steps send nothing, then 2 (P - 1) times the parameters' bytes, and one number that says what each
    rank's rows weigh, go between all ranks together, in phase "gradients".

    Args:
        model: whose parameters.
        communicator: how the ranks talk.
        every: steps from one average to the next. More: fewer bytes, and ranks that drift further apart.
        share: this rank's share of all training rows, its weight where a loss tells none; 1 over all ranks.
    """

    def __init__(self, model: nn.Module, communicator: Communicator, *, every: int, share: float) -> None:
        if every < 2:
            raise ConfigError(
                f"Local steps from one average of the parameters to the next should be 2 or more, got {every}. To "
                f"combine ranks in every step, share gradients."
            )
        self._model = model
        self._communicator = communicator
        self._every = every
        self._num_steps = 0
        # What the rows of this rank weighed in the losses since the last average.
        self._weight = 0.0
        self._are_leaves_checked = False
        self.shared_pass = SharedPass()
        """Knows whether a backward pass came through one of these losses."""
        self._share = self._agreed(share)

    def share(self, total: Tensor, weight: float | None = None) -> Tensor:
        """Returns the rank's own mean loss: its total over what its rows weigh.

        Over its own weight, a rank of few rows takes steps as long as the others'; in the average it counts for its few
        rows. For one step of SGD, that average is the step of the global mean. (Own mean times P share, and an average
        of equal weights, would be the same for SGD, but not for optimizers that scale gradients, such as Adam: there, a
        rank of one row would count for as much as any. Never do both.) A rank whose rows weigh nothing has no gradient,
        and does not count. Other terms may be added to what is returned, such as a penalty on weights: they are the
        same on all ranks, and count once.

        Args:
            total: the sum of this rank's losses.
            weight: what its rows weigh; None: `total` is the rank's share of the loss of all ranks, which is divided by
                its share of the rows.
        """
        if not self._are_leaves_checked and total.grad_fn is not None:
            check_leaves(total, self._model)
            self._are_leaves_checked = True
        own = self._share if weight is None else weight
        if total.requires_grad:
            self._weight += own
        return self.shared_pass.marked(total / own if own else total * 0.0)

    def mean(self, value: float) -> float:
        """Returns the mean of the ranks' numbers, weighted by their rows: of own mean losses, the global one.

        Traffic: an all_reduce of 8 bytes, in phase "gradients".
        """
        with self._communicator.ledger.phase("gradients"):
            total = self._communicator.all_reduce(torch.tensor([self._share * value], dtype=torch.float64))
        return float(total)

    def end_step(self) -> None:
        """Called after each step of the optimizer, by all ranks; averages when it is time to."""
        self._num_steps += 1
        if self._num_steps == self._every:
            self.synchronise()

    def synchronise(self) -> None:
        """Averages now, if a step was taken since the last time; then parameters are equal on all ranks."""
        if self._num_steps:
            self._put(self._averages())
            self._num_steps = 0

    def _agreed(self, share: float) -> float:
        # One that is none spoils the sum, so that all ranks see it.
        known = share if 0 <= share <= 1 else float("nan")
        total = float(self._communicator.all_reduce(torch.tensor([known], dtype=torch.float64)))
        if not abs(total - 1) < _ROUNDING:
            raise ConfigError(
                f"The ranks' shares of all training rows should be 0 to 1 each and add up to 1, got {share} here and "
                f"{total} in all (nan: some rank's is no share). Give each rank its own rows over those of all."
            )
        return share

    def _parameters(self) -> dict[str, Tensor]:
        return {name: parameter for name, parameter in self._model.named_parameters() if parameter.requires_grad}

    def _averages(self) -> dict[str, Tensor]:
        parameters, communicator = self._parameters(), self._communicator
        # The sum of many rows' weights has no room in 16 bits.
        wide = [value.detach().to(torch.promote_types(value.dtype, torch.float32)) for value in parameters.values()]
        weighted = [value * self._weight for value in wide]
        if not weighted:
            return {}
        weight = weighted[0].new_tensor([self._weight])
        self._weight = 0.0
        with communicator.ledger.phase("gradients"):
            *sums, total = in_buckets([*weighted, weight], lambda flat: communicator.start_all_reduce(flat).wait)
        check_weight(float(total))
        return {name: value / total.to(value.dtype) for name, value in zip(parameters, sums, strict=True)}

    def _put(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self._parameters().items():
                parameter.copy_(values[name])
