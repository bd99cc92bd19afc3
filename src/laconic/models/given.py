"""GivenModel: what a configuration says of a run whose model was an object, given to `laconic.start`.

An object is not kept: whoever goes on with the run gives it again.
"""

from dataclasses import dataclass
from typing import Any, final

from torch import nn

from laconic.errors import ConfigError
from laconic.models.base import ModelSpec

SOURCE = "given"


@final
@dataclass(frozen=True, slots=True)
class GivenModel(ModelSpec):
    """The class of the object, and the module that the class is from."""

    name: str
    module: str

    @property
    def num_hops(self) -> None:
        return None

    @staticmethod
    def of(model: nn.Module) -> "GivenModel":
        """Returns what is kept of `model`."""
        return GivenModel(type(model).__name__, type(model).__module__)

    def section(self) -> dict[str, Any]:
        """Returns what the configuration says of it."""
        return {"name": self.name, "source": SOURCE, "module": self.module}

    def build(self, num_features: int, num_classes: int) -> nn.Module:
        raise ConfigError(
            f"The model of this run was an object given to laconic.start: a {self.name} of module {self.module}. A run "
            f"folder does not keep it. Build it again and give it, as in laconic.predict(folder, model=model) or "
            f"laconic.resume(folder, model=model); or train by `laconic train --model FILE.py:{self.name}`, which "
            f"keeps the file."
        )
