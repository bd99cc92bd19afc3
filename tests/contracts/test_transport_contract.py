"""What every transport promises: the same results and the same ledgers, whoever carries the tensors.

A case is a function of a communicator; it runs on every rank of every member and is compared with what one process
computes from the inputs of all ranks. Values are small whole numbers, so that sums are exact in any order and dtype.
"""

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes.rank_processes import Environment, run_processes
from torch import Tensor

from laconic.comm import TRANSPORTS, Communicator, Ledger, LocalTransport, Transport, connect, run_ranks

DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.int8,
    torch.bool,
]
MEMBERS = [("local", 1), *(("threads", n) for n in (1, 2, 3, 4)), ("torch", 2), ("torch", 3)]
TINY_PIECE = 24
# What is moved only need not be known to the backend; int16 is not known to gloo.
MOVED_DTYPES = [*DTYPES, torch.int16]


def values(seed: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 9, tuple(shape), generator=generator).to(dtype)


def num_rows(sender: int, receiver: int) -> int:
    """Zero for some peers, and for some ranks' own part."""
    return (3 * sender + 2 * receiver) % 4


def part(sender: int, receiver: int, dtype: torch.dtype, trailing: Sequence[int]) -> Tensor:
    return values(100 * sender + receiver, (num_rows(sender, receiver), *trailing), dtype)


def parts(sender: int, num_ranks: int, dtype: torch.dtype, trailing: Sequence[int] = (2,)) -> Tensor:
    return torch.cat([part(sender, receiver, dtype, trailing) for receiver in range(num_ranks)])


def reduced(tensors: Sequence[Tensor], op: str) -> Tensor:
    stacked = torch.stack(list(tensors))
    if stacked.dtype == torch.bool:
        return stacked.all(0) if op == "min" else stacked.any(0)
    if op == "sum":
        return stacked.sum(0).to(stacked.dtype)
    return stacked.amax(0) if op == "max" else stacked.amin(0)


def all_to_all(communicator: Communicator, *, dtype: torch.dtype, trailing: Sequence[int] = (2,)) -> Tensor:
    ranks = range(communicator.num_ranks)
    splits = communicator.agree_on_splits([num_rows(communicator.rank, receiver) for receiver in ranks])
    assert splits.receive == tuple(num_rows(sender, communicator.rank) for sender in ranks)
    rows = parts(communicator.rank, communicator.num_ranks, dtype, trailing)
    there = communicator.all_to_all(rows, splits)
    assert torch.equal(communicator.all_to_all(there, splits.reversed), rows)
    return there


def expect_all_to_all(num_ranks: int, rank: int, *, dtype: torch.dtype, trailing: Sequence[int] = (2,)) -> Tensor:
    return torch.cat([part(sender, rank, dtype, trailing) for sender in range(num_ranks)])


def all_reduce(communicator: Communicator, *, dtype: torch.dtype, op: Any, shape: Sequence[int] = (3, 5)) -> Tensor:
    return communicator.all_reduce(values(communicator.rank, shape, dtype), op)


def expect_all_reduce(
    num_ranks: int, rank: int, *, dtype: torch.dtype, op: str, shape: Sequence[int] = (3, 5)
) -> Tensor:
    return reduced([values(other, shape, dtype) for other in range(num_ranks)], op)


def all_gather(communicator: Communicator, *, dtype: torch.dtype, shape: Sequence[int] = (3, 5)) -> Tensor:
    return communicator.all_gather(values(communicator.rank, shape, dtype))


def expect_all_gather(num_ranks: int, rank: int, *, dtype: torch.dtype, shape: Sequence[int] = (3, 5)) -> Tensor:
    return torch.stack([values(other, shape, dtype) for other in range(num_ranks)])


def scatter_sizes(num_ranks: int) -> list[int]:
    return [(3 * rank + 1) % 5 for rank in range(num_ranks)]


def reduce_scatter(communicator: Communicator, *, dtype: torch.dtype, trailing: Sequence[int] = (3,)) -> Tensor:
    sizes = scatter_sizes(communicator.num_ranks)
    return communicator.reduce_scatter(values(communicator.rank, (sum(sizes), *trailing), dtype), sizes)


def expect_reduce_scatter(num_ranks: int, rank: int, *, dtype: torch.dtype, trailing: Sequence[int] = (3,)) -> Tensor:
    sizes = scatter_sizes(num_ranks)
    total = reduced([values(other, (sum(sizes), *trailing), dtype) for other in range(num_ranks)], "sum")
    return total.split(sizes)[rank]


def broadcast(communicator: Communicator, *, dtype: torch.dtype, shape: Sequence[int] = (4, 3)) -> Tensor:
    return communicator.broadcast(values(communicator.rank, shape, dtype), root=communicator.num_ranks - 1)


def expect_broadcast(num_ranks: int, rank: int, *, dtype: torch.dtype, shape: Sequence[int] = (4, 3)) -> Tensor:
    return values(num_ranks - 1, shape, dtype)


def many_under_way(communicator: Communicator) -> Tensor:
    """Operations overlap, are waited for in another order, and buffers are used again once the wait is over."""
    ranks = range(communicator.num_ranks)
    splits = communicator.agree_on_splits([1 for _ in ranks])
    mine = torch.full((communicator.num_ranks, 2), float(communicator.rank))
    started = [communicator.start_all_to_all(mine + number, splits) for number in range(5)]
    total = communicator.start_all_reduce(mine)
    results = [total.wait()] + [pending.wait() for pending in reversed(started)]
    assert torch.equal(total.wait(), results[0])
    buffer = mine.clone()
    first = communicator.all_to_all(buffer, splits)
    buffer.fill_(-1.0)
    communicator.barrier()
    return torch.cat([*results, first])


def expect_many_under_way(num_ranks: int, rank: int) -> Tensor:
    came = torch.arange(num_ranks, dtype=torch.float32)[:, None].expand(-1, 2)
    total = torch.full((num_ranks, 2), float(sum(range(num_ranks))))
    return torch.cat([total, *(came + number for number in reversed(range(5))), came])


def odd_layouts(communicator: Communicator) -> Tensor:
    """Arguments that are transposed, strided, expanded or need a gradient; none is changed."""
    rank = communicator.rank
    wide = values(rank, (6, 4), torch.float32).requires_grad_()
    before = wide.detach().clone()
    everywhere = torch.ones((), dtype=torch.int64).expand(3)
    results = [
        communicator.all_reduce(wide.t()),
        communicator.all_gather(wide[::2, ::2]),
        communicator.broadcast(wide.t()[1:], root=0),
        communicator.all_reduce(everywhere),
        communicator.all_gather(torch.tensor(rank)),
    ]
    assert torch.equal(wide, before)
    assert not any(result.requires_grad for result in results)
    return torch.cat([result.flatten().float() for result in results])


def expect_odd_layouts(num_ranks: int, rank: int) -> Tensor:
    all_wide = [values(other, (6, 4), torch.float32) for other in range(num_ranks)]
    results = [
        reduced(all_wide, "sum").t(),
        torch.stack(all_wide)[:, ::2, ::2],
        all_wide[0].t()[1:],
        torch.full((3,), num_ranks),
        torch.arange(num_ranks),
    ]
    return torch.cat([result.flatten().float() for result in results])


Case = tuple[Callable[..., Tensor], Callable[..., Tensor], dict[str, Any]]
CASES: dict[str, Case] = {
    "many under way": (many_under_way, expect_many_under_way, {}),
    "odd layouts": (odd_layouts, expect_odd_layouts, {}),
    "all_to_all without trailing shape": (
        all_to_all,
        expect_all_to_all,
        {"dtype": torch.int64, "trailing": ()},
    ),
    "all_to_all of zero width": (all_to_all, expect_all_to_all, {"dtype": torch.float32, "trailing": (0,)}),
    "all_to_all of deep rows": (all_to_all, expect_all_to_all, {"dtype": torch.float32, "trailing": (2, 1, 3)}),
    "reduce_scatter of zero width": (
        reduce_scatter,
        expect_reduce_scatter,
        {"dtype": torch.float32, "trailing": (0,)},
    ),
}
for dtype in MOVED_DTYPES:
    name = str(dtype).removeprefix("torch.")
    CASES[f"all_to_all {name}"] = (all_to_all, expect_all_to_all, {"dtype": dtype})
    CASES[f"all_gather {name}"] = (all_gather, expect_all_gather, {"dtype": dtype})
    CASES[f"broadcast {name}"] = (broadcast, expect_broadcast, {"dtype": dtype})
for dtype in DTYPES:
    name = str(dtype).removeprefix("torch.")
    CASES[f"reduce_scatter {name}"] = (reduce_scatter, expect_reduce_scatter, {"dtype": dtype})
    for op in ("sum", "max", "min"):
        CASES[f"all_reduce {op} {name}"] = (all_reduce, expect_all_reduce, {"dtype": dtype, "op": op})
for shape in [(0, 3), ()]:
    setting: dict[str, Any] = {"dtype": torch.float32, "shape": shape}
    CASES[f"all_reduce of shape {shape}"] = (all_reduce, expect_all_reduce, {**setting, "op": "sum"})
    CASES[f"all_gather of shape {shape}"] = (all_gather, expect_all_gather, setting)
    CASES[f"broadcast of shape {shape}"] = (broadcast, expect_broadcast, setting)
# Too large to be sent whole to every rank, and of a length that ranks cannot share evenly.
for dtype, op in [(torch.float64, "sum"), (torch.bfloat16, "sum"), (torch.bool, "sum"), (torch.int32, "max")]:
    setting = {"dtype": dtype, "op": op, "shape": (61, 151)}
    CASES[f"all_reduce {op}, large, {dtype}"] = (all_reduce, expect_all_reduce, setting)


def plain(tensor: Tensor) -> tuple[str, list[int], Any]:
    """A tensor as values that any process can hand on."""
    # A boolean that is stored as 2 is a fault, too.
    numbers = tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor
    return str(tensor.dtype), list(tensor.shape), numbers.tolist()


def run_cases(transport: Transport) -> dict[str, Any]:
    """Every case on one rank, whole and in pieces: result, and what the ledger says of it."""
    found: dict[str, Any] = {}
    for piece_bytes in (1 << 20, TINY_PIECE):
        ledger = Ledger(transport.rank)
        communicator = Communicator(transport, ledger, piece_bytes=piece_bytes)
        for name, (case, _, setting) in CASES.items():
            with ledger.phase("forward", layer=1):
                result = case(communicator, **setting)
            found[f"{name}, pieces of {piece_bytes}"] = (plain(result), ledger.take(epoch=1))
    return found


def run_as_process(environment: Environment) -> dict[str, Any]:
    with connect(environment, timeout=20) as transport:
        return run_cases(transport)


@functools.cache
def found(member: str, num_ranks: int) -> list[dict[str, Any]]:
    """What `run_cases` gave on each rank; processes are started once for all cases."""
    if member == "local":
        return [run_cases(LocalTransport())]
    if member == "threads":
        return run_ranks(num_ranks, run_cases)
    outcomes = run_processes(num_ranks, run_as_process)
    assert not [outcome.error for outcome in outcomes if outcome.error]
    return [outcome.value for outcome in outcomes]


members = pytest.mark.parametrize(("member", "num_ranks"), MEMBERS)


@members
@pytest.mark.parametrize("piece_bytes", [1 << 20, TINY_PIECE])
@pytest.mark.parametrize("case", CASES)
def test_results_are_what_one_process_computes(member: str, num_ranks: int, case: str, piece_bytes: int) -> None:
    _, expect, setting = CASES[case]
    for rank in range(num_ranks):
        result, _ = found(member, num_ranks)[rank][f"{case}, pieces of {piece_bytes}"]
        assert result == plain(expect(num_ranks, rank, **setting)), f"rank {rank}"


@members
def test_ledgers_are_the_same_on_all_members_and_do_not_depend_on_pieces(member: str, num_ranks: int) -> None:
    for rank in range(num_ranks):
        reference = found("threads", num_ranks)[rank]
        for case in CASES:
            _, booked = reference[f"{case}, pieces of {1 << 20}"]
            for piece_bytes in (1 << 20, TINY_PIECE):
                _, records = found(member, num_ranks)[rank][f"{case}, pieces of {piece_bytes}"]
                assert records == booked, case


@members
def test_what_is_sent_is_received(member: str, num_ranks: int) -> None:
    for case in CASES:
        total = {"sent": [0, 0], "received": [0, 0]}
        for rank in range(num_ranks):
            for record in found(member, num_ranks)[rank][f"{case}, pieces of {TINY_PIECE}"][1]:
                assert (record.rank, record.phase, record.layer) == (rank, "forward", 1)
                total[record.direction][0] += record.num_messages
                total[record.direction][1] += record.num_bytes
        assert total["sent"] == total["received"], case
        if num_ranks == 1:
            assert total["sent"] == [0, 0], case


def test_torch_distributed_is_known_to_the_transports_and_to_those_who_make_them() -> None:
    source = Path(__file__).parents[2] / "src" / "laconic"
    knowing = {
        path
        for path in source.rglob("*.py")
        if re.search(r"import.*torch\.distributed|from torch\.distributed", path.read_text())
    }
    assert knowing
    # The hook is for loops under torch's own DistributedDataParallel.
    knowing.remove(source / "papers" / "grappa" / "ddp_hook.py")
    assert {path.parent for path in knowing} == {source / "comm" / "transport", source / "launching"}


def test_every_file_of_the_family_is_a_member_of_the_table() -> None:
    folder = Path(__file__).parents[2] / "src" / "laconic" / "comm" / "transport"
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    # The silent one reaches nobody: it is for counting what would be sent.
    assert files - {"base", "silent"} == set(TRANSPORTS) == {member for member, _ in MEMBERS}
