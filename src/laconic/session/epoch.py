"""Epoch: what a training loop is given for each epoch, its number and the shard to train on.

for epoch, shard in session.epochs(100):
    loss = session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard)
"""

import dis
from types import FrameType
from typing import NamedTuple, NoReturn, final

from laconic.errors import ConfigError
from laconic.graph import Shard

_LOOP = "for epoch, shard in session.epochs(100):"
# A number has these, a pair has not: with them, a loop that takes the pair for the number is told what to write.
_OF_NUMBERS = (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod"),
    *("pow", "rpow", "lt", "le", "gt", "ge", "int", "float", "index", "format"),
)


class _Pair(NamedTuple):
    number: int
    shard: Shard


@final
class Epoch(_Pair):
    """An epoch of a training loop.

    Args:
        number: of the epoch; the first is 1.
        shard: the rows and edges to train on in this epoch.
    """

    __slots__ = ()
    __hash__ = tuple.__hash__

    def __eq__(self, other: object) -> bool:
        return self._is_no_number() if isinstance(other, int) else super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _is_no_number(self, *others: object) -> NoReturn:
        raise ConfigError(
            f"session.epochs gives the number of the epoch and the shard to train on, but this loop takes the pair for "
            f"the number. Write: {_LOOP}"
        )


for _name in _OF_NUMBERS:
    setattr(Epoch, f"__{_name}__", Epoch._is_no_number)


def check_takes_model_alone(caller: FrameType) -> None:
    """Raises ConfigError if the caller of `session.attach` unpacks its result into a model and a shard.

    A model cannot be unpacked, or (an nn.Sequential) into its layers. So the instruction that follows the call is
    looked at before anything is attached.
    """
    following = (step for step in dis.get_instructions(caller.f_code) if step.offset > caller.f_lasti)
    if next((step.opname for step in following), "") == "UNPACK_SEQUENCE":
        raise ConfigError(
            f"session.attach returns the model alone. Write: model = session.attach(model). The shard comes with each "
            f"epoch: {_LOOP} Outside of the loop it is session.shard."
        )
