"""Laconic under a training loop of your own: join, attach, epochs, loss, evaluate, predict."""

from laconic.session.epoch import Epoch
from laconic.session.session import Session, join

__all__ = ["Epoch", "Session", "join"]
