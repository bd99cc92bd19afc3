"""Training on one machine: settings, the loop, checkpoints and the run folder.

from laconic.trainer import Config, start
summary = start(Config())
"""

from laconic.session.predictions import Predictions
from laconic.trainer.config import Config, DataConfig, RunConfig, TrainingConfig
from laconic.trainer.predict import predict, write_predictions
from laconic.trainer.start import resume, start
from laconic.trainer.summary import Summary

__all__ = [
    "Config",
    "DataConfig",
    "Predictions",
    "RunConfig",
    "Summary",
    "TrainingConfig",
    "predict",
    "resume",
    "start",
    "write_predictions",
]
