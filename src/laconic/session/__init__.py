"""Laconic under a training loop of your own: join, attach, epochs, loss, evaluate, predict."""

from laconic.session.epoch import Epoch
from laconic.session.joining import join
from laconic.session.session import Session

__all__ = ["Epoch", "Session", "join"]
