"""Local steps: ranks train apart for a few steps, then average what has become of the model.

    local = LocalSteps(model, communicator, every=4, share=num_own_rows / num_rows)
    loss = local.share(local_loss)          # this rank's own mean; nothing is sent
    loss.backward(); optimizer.step()
    local.end_step()                        # every fourth one averages the parameters
    with local.averaged():                  # what all ranks would have if they averaged now
        ...                                 # score it, save it

Lin, Stich, Patel, Jaggi, "Don't use large mini-batches, use local SGD", arXiv 1808.07217. The optimizer's moments stay
each rank's own: they are not averaged, and a run that shall go on as if it had never stopped has to keep those of every
rank. Looking changes nothing: inside `averaged` the parameters are the average, afterwards what they were.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from laconic.comm.communicator import Communicator
from laconic.comm.gather import gather_tensors
from laconic.errors import ConfigError
from laconic.halo.gradients import check_leaves
from laconic.halo.reductions._buckets import in_buckets

# Shares are quotients of whole numbers: beyond rounding, they add up to 1.
_ROUNDING = 1e-9
_COUNT = "local_steps"


@final
class LocalSteps:
    """Keeps the parameters of one model apart for a few steps, and averages them. All ranks make it together.

    Traffic: `every` steps send nothing, then 2 (P - 1) times the parameters' bytes go between all ranks together, in
    phase "gradients".

    Args:
        model: whose parameters.
        communicator: how the ranks talk.
        every: steps from one average to the next. More: fewer bytes, and ranks that drift further apart.
        share: this rank's share of all training rows, its weight in the average; 1 over all ranks.
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
        self._are_leaves_checked = False
        # This rank's own parameters, while the model has the average of all.
        self._own: dict[str, Tensor] | None = None
        self._share = self._agreed(share)

    def set_share(self, share: float) -> None:
        """Gives this rank another share of all training rows, from the next step on; all ranks call together.

        Traffic: that of `synchronise`, and an all_reduce of 8 bytes.
        """
        self.synchronise()
        self._share = self._agreed(share)

    def share(self, loss: Tensor) -> Tensor:
        """Returns the rank's own mean loss, for a loss that is its share of the global mean.

        That share is the sum over the rank's rows, divided by the rows of all ranks; divided by `share` it is the mean
        over its own rows, so that a rank of few rows takes steps as long as the others', and counts for its few rows
        in the average. For one step of SGD, that average is the step of the global mean. (Own mean times P share, and
        an average of equal weights, would be the same for SGD, but not for optimizers that scale gradients, such as
        Adam: there, a rank of one row would count for as much as any. Never do both.) A rank without training rows
        has no gradient, and does not count. Other terms may be added to what is returned, such as a penalty on
        weights: they are the same on all ranks, and count once.
        """
        if not self._are_leaves_checked and loss.grad_fn is not None:
            check_leaves(loss, self._model)
            self._are_leaves_checked = True
        return loss / self._share if self._share else loss * 0.0

    def mean(self, value: float) -> float:
        """Returns the mean of the ranks' numbers, weighted as their parameters are: of own mean losses, the global one.

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
        assert self._own is None, "the model has the average already, for a while"
        if self._num_steps:
            self._put(self._averages())
            self._num_steps = 0

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, all ranks have the average of their parameters; afterwards, each has its own again.

        Traffic: the parameters, as in `synchronise`; none where no step was taken since.
        """
        assert self._own is None, "the model has the average already"
        if not self._num_steps:
            yield
            return
        averages = self._averages()
        self._own = {name: parameter.detach().clone() for name, parameter in self._parameters().items()}
        self._put(averages)
        try:
            yield
        finally:
            self._put(self._own)
            self._own = None

    def state(self) -> dict[str, Tensor]:
        """Returns what a checkpoint has to hold beside the averaged model: the parameters of all ranks, and a count.

        It may be called inside `averaged` too. Traffic: an all_gather of each parameter, in phase "checkpoint"; none
        where no step was taken since the last average.
        """
        if not self._num_steps:
            return {}
        own = self._parameters() if self._own is None else self._own
        with self._communicator.ledger.phase("checkpoint"):
            gathered = gather_tensors(self._communicator, own)
        return {**gathered, _COUNT: torch.tensor([self._num_steps])}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes back what `state` gave, after the averaged model was loaded.

        On another number of ranks than there were, all begin with the average.
        """
        self._num_steps = 0
        if not state:
            return
        rows = {name: value for name, value in state.items() if name != _COUNT}
        expected = {name: parameter.shape for name, parameter in self._parameters().items()}
        if _COUNT not in state or {name: value.shape[1:] for name, value in rows.items()} != expected:
            raise ValueError(f"local steps need the parameters of every rank and a count, got {', '.join(state)}")
        if all(len(value) == self._communicator.num_ranks for value in rows.values()):
            self._put({name: value[self._communicator.rank] for name, value in rows.items()})
            self._num_steps = int(state[_COUNT])

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
        weighted = [value.detach() * self._share for value in parameters.values()]
        with communicator.ledger.phase("gradients"):
            averages = in_buckets(weighted, lambda flat: communicator.start_all_reduce(flat).wait)
        return dict(zip(parameters, averages, strict=True))

    def _put(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self._parameters().items():
                parameter.copy_(values[name])
