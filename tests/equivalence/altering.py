"""Transports that alter what comes to rank 1, as a network should not."""

import torch


class Altering:
    """A transport that alters what comes to rank 1 in the all-to-alls of bytes, from some moment on."""

    def __init__(self, inner, alter, after):
        self._inner, self._alter, self._left = inner, alter, after

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def start_all_to_all(self, out, out_sizes, data, sizes):
        pending = self._inner.start_all_to_all(out, out_sizes, data, sizes)
        if self._inner.rank != 1 or out.dtype != torch.uint8:
            return pending
        self._left -= 1
        return pending.then(lambda _: self._alter(out)) if self._left < 0 else pending


def flip(place: int):
    def alter(out):
        out[place] ^= 4

    return alter


def shift(out):
    out[1:] = out[:-1].clone()
