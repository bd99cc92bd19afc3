"""Models for the command: samples by name, thin builders around PyG's ready-made classes; and models of one's own.

A new sample is one file here and one line in MODELS. A model of one's own is a class or function of the user's code
(own.py). A library user may also give a model object (given.py).

    build_model(parse_model("gat(hidden=128, heads=8)"), num_features=500, num_classes=3, seed=0)
"""

import threading
from collections.abc import Mapping

import torch
from torch import nn

from laconic.models.appnp import Appnp
from laconic.models.base import ModelSpec
from laconic.models.gat import Gat
from laconic.models.gatv2 import Gatv2
from laconic.models.gcn import Gcn
from laconic.models.gin import Gin
from laconic.models.given import GivenModel
from laconic.models.mlp import Mlp
from laconic.models.own import OwnModel, own_model, split_own
from laconic.models.sage import Sage
from laconic.models.sgc import Sgc
from laconic.specs import parse_spec

MODELS: Mapping[str, type[ModelSpec]] = {
    "mlp": Mlp,
    "sgc": Sgc,
    "gcn": Gcn,
    "sage": Sage,
    "gin": Gin,
    "gat": Gat,
    "gatv2": Gatv2,
    "appnp": Appnp,
}

_one_generator = threading.Lock()


def parse_model(text: str) -> ModelSpec:
    """Returns the settings that a text such as "sage(hidden=256, layers=3)" or "my_model.py:Net(hidden=64)" names."""
    own = split_own(text)
    return parse_spec(text, MODELS, family="model") if own is None else own_model(*own)


def build_model(spec: ModelSpec, *, num_features: int, num_classes: int, seed: int) -> nn.Module:
    """Returns the model with weights that depend on `seed` alone; the global random state is left as it was."""
    # PyG's layers draw their weights from torch's global generator and take no other, so it is lent to them: to one at
    # a time, where ranks are threads.
    with _one_generator, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return spec.build(num_features, num_classes)


__all__ = ["MODELS", "GivenModel", "ModelSpec", "OwnModel", "build_model", "own_model", "parse_model", "split_own"]
