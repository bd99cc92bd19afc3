"""Large messages in pieces, since gloo sends a part of any size in one go. All ranks cut alike: sizes decide alone."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from laconic.comm.pending import Pending
from laconic.comm.splits import Splits
from laconic.comm.transport import Reduction, Transport

PIECE_BYTES = 64 << 20


def cut(num_rows: int, row_bytes: int, piece_bytes: int) -> list[slice]:
    """Returns the pieces of a part of `num_rows` rows, each of at most `piece_bytes` or of one row; at least one."""
    step = max(1, piece_bytes // max(row_bytes, 1))
    return [slice(start, start + step) for start in range(0, max(num_rows, 1), step)]


def all_of(pieces: Sequence[Pending[None]], finish: Callable[[], None] = lambda: None) -> Pending[None]:
    """Returns the end of all pieces, and then of `finish`, which puts what came to where it belongs."""

    def wait() -> None:
        for piece in pieces:
            piece.wait()
        finish()

    return Pending(wait)


def start_all_to_all(
    transport: Transport, out: Tensor, rows: Tensor, splits: Splits, piece_bytes: int
) -> Pending[None]:
    """Starts an all_to_all of parts of which none is larger than `splits.largest`, but for a rank's own."""
    pieces = cut(splits.largest, row_bytes(rows), piece_bytes)
    if len(pieces) == 1 and splits.largest:
        return transport.start_all_to_all(out, splits.receive, rows, splits.send)
    # Views of what goes to, and comes from, each rank; a rank's own part does not travel.
    to = list(rows.split_with_sizes(splits.send))
    come = list(out.split_with_sizes(splits.receive))
    come[transport.rank].copy_(to[transport.rank])
    to[transport.rank] = come[transport.rank] = rows[:0]
    started: list[Pending[None]] = []
    landed: list[tuple[Tensor, list[Tensor]]] = []
    for piece in pieces if splits.largest else []:
        sources, targets = [part[piece] for part in to], [part[piece] for part in come]
        data = torch.cat(sources)
        buffer = rows.new_empty((sum(map(len, targets)), *rows.shape[1:]))
        started.append(
            transport.start_all_to_all(buffer, [len(part) for part in targets], data, [len(part) for part in sources])
        )
        landed.append((buffer, targets))

    def finish() -> None:
        for buffer, targets in landed:
            for target, part in zip(targets, buffer.split_with_sizes([len(part) for part in targets]), strict=True):
                target.copy_(part)

    return all_of(started, finish)


def start_reduce_scatter(
    transport: Transport, out: Tensor, rows: Tensor, sizes: Sequence[int], piece_bytes: int
) -> Pending[None]:
    """Starts a reduce_scatter of parts of `sizes[r]` rows."""
    pieces = cut(max(sizes), row_bytes(rows), piece_bytes)
    if len(pieces) == 1:
        return transport.start_reduce_scatter(out, rows, sizes)
    parts = rows.split_with_sizes(list(sizes))
    started = []
    for piece in pieces:
        sources = [part[piece] for part in parts]
        started.append(
            transport.start_reduce_scatter(out[piece], torch.cat(sources), [len(source) for source in sources])
        )
    return all_of(started)


def start_all_reduce(transport: Transport, tensor: Tensor, op: Reduction, piece_bytes: int) -> Pending[None]:
    """Starts an all_reduce, in place. Sums are made number by number: a cut changes none."""
    flat = tensor.view(-1)
    pieces = cut(flat.shape[0], flat.itemsize, piece_bytes)
    if len(pieces) == 1:
        return transport.start_all_reduce(tensor, op)
    return all_of([transport.start_all_reduce(flat[piece], op) for piece in pieces])


def start_all_gather(transport: Transport, out: Tensor, tensor: Tensor, piece_bytes: int) -> Pending[None]:
    """Starts an all_gather into `out`, (P, *tensor.shape)."""
    flat, flat_out = tensor.view(-1), out.view(transport.num_ranks, tensor.numel())
    pieces = cut(flat.shape[0], flat.itemsize, piece_bytes)
    if len(pieces) == 1:
        return transport.start_all_gather(out, tensor)
    buffers = [flat.new_empty((transport.num_ranks, len(flat[piece]))) for piece in pieces]
    started = [transport.start_all_gather(buffer, flat[piece]) for buffer, piece in zip(buffers, pieces, strict=True)]

    def finish() -> None:
        for buffer, piece in zip(buffers, pieces, strict=True):
            flat_out[:, piece] = buffer

    return all_of(started, finish)


def start_broadcast(transport: Transport, tensor: Tensor, root: int, piece_bytes: int) -> Pending[None]:
    """Starts a broadcast, in place."""
    flat = tensor.view(-1)
    pieces = cut(flat.shape[0], flat.itemsize, piece_bytes)
    return all_of([transport.start_broadcast(flat[piece], root) for piece in pieces])


def row_bytes(rows: Tensor) -> int:
    """Returns the bytes of one row."""
    return rows.shape[1:].numel() * rows.itemsize
