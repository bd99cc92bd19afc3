"""`laconic.coverage_hook` under torch's own DistributedDataParallel, with real processes.

DDP takes seconds to load, so each number of ranks is started once, and goes through all cases.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist
from tests.processes.rank_processes import Environment, run_processes
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic.errors import ConfigError

BATCH_SIZES = [3, 5, 2]
COVERAGES = [0.25, 0.75, 0.5]
NUM_STEPS = 3
# By step and parameter.
Gradients = list[list[list[float]]]


@dataclass(frozen=True)
class Case:
    """What each rank tells of its batches; without a combination there is no hook."""

    combination: str | None
    coverages: Sequence[float]
    batch_sizes: Sequence[int]
    dtype: torch.dtype = torch.float64


ONES, FOURS = [1.0] * 3, [4] * 3
CASES = {
    "mean of ones": Case("mean", ONES, FOURS),
    "ddp": Case(None, ONES, FOURS),
    "mean of ones, float32": Case("mean", ONES, FOURS, torch.float32),
    "ddp, float32": Case(None, ONES, FOURS, torch.float32),
    "mean": Case("mean", COVERAGES, BATCH_SIZES),
    "self_normalised": Case("self_normalised", COVERAGES, BATCH_SIZES),
    "self_normalised of ones": Case("self_normalised", ONES, BATCH_SIZES),
    "self_normalised, scaled": Case("self_normalised", [4 * coverage for coverage in COVERAGES], BATCH_SIZES),
    "mean of an empty batch": Case("mean", [0.5, 0.0, 0.0], [BATCH_SIZES[0], 0, 0]),
    "self_normalised of an empty batch": Case("self_normalised", [0.5, 0.0, 0.0], [BATCH_SIZES[0], 0, 0]),
}
# What the last rank tells; the others tell what they should.
MISUSES: dict[str, tuple[list[tuple[float, float]], str]] = {
    "never": ([], "`set` was not called for this step"),
    "twice": ([(1.0, 2), (1.0, 2)], "`set` was called twice for one step"),
    "no number": ([(float("nan"), 2)], "coverage should be a number of 0 or more, got nan"),
    "less than nothing": ([(-0.5, 2)], "coverage should be a number of 0 or more, got -0.5"),
    "negative size": ([(1.0, -2)], "batch_size should be a whole number of 0 or more, got -2"),
    "no size": ([(1.0, float("nan"))], "batch_size should be a whole number of 0 or more, got nan"),
}


@dataclass
class Findings:
    """What one rank saw."""

    gradients: dict[str, Gradients] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    words_reduced: list[list[int]] = field(default_factory=list)
    """Of each all-reduce, by step."""


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3)).double()


def under_ddp(model: nn.Module) -> DistributedDataParallel:
    # Small buckets, so that there are several.
    return DistributedDataParallel(model, bucket_cap_mb=0.005)


def rows(rank: int, step: int, num_rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(num_rows, 6, generator=generator, dtype=torch.float64)


def mean_loss(model: nn.Module, rank: int, step: int, num_rows: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return model(rows(rank, step, num_rows).to(dtype)).square().mean()


def gradients_of(case: Case, rank: int) -> Gradients:
    model = under_ddp(build().to(case.dtype))
    hook = None if case.combination is None else laconic.coverage_hook(case.combination)
    if hook is not None:
        hook.register(model)
    found = []
    for step in range(NUM_STEPS):
        model.zero_grad()
        loss = mean_loss(model, rank, step, case.batch_sizes[rank], case.dtype)
        if hook is not None:
            hook.set(coverage=case.coverages[rank], batch_size=case.batch_sizes[rank])
        loss.backward()
        found.append([parameter.grad.flatten().tolist() for parameter in model.parameters()])
    return found


def error_of(told: Sequence[tuple[float, float]], rank: int) -> str:
    """What `backward` says of the second step."""
    model = under_ddp(build())
    hook = laconic.coverage_hook()
    model.register_comm_hook(hook, hook.hook)
    hook.set(1.0, 2)
    mean_loss(model, rank, 0, 2).backward()
    for coverage, batch_size in told:
        hook.set(coverage, batch_size)
    loss = mean_loss(model, rank, 1, 2)
    with pytest.raises(Exception) as raised:
        loss.backward()
    return f"{type(raised.value).__name__}: {raised.value}"


def words_reduced(rank: int) -> list[list[int]]:
    seen: list[int] = []
    all_reduce = dist.all_reduce

    def counting(tensor: Tensor, *arguments, **settings):
        seen.append(tensor.numel())
        return all_reduce(tensor, *arguments, **settings)

    model = under_ddp(build())
    hook = laconic.coverage_hook()
    hook.register(model)
    steps = []
    dist.all_reduce = counting
    for step in range(NUM_STEPS):
        hook.set(torch.tensor(0.5), torch.tensor(2))
        mean_loss(model, rank, step, 2).backward()
        steps.append(list(seen))
        seen.clear()
    dist.all_reduce = all_reduce
    return steps


def go_through_all_cases(environment: Environment, *, num_ranks: int) -> Findings:
    rank = int(environment["RANK"])
    store = dist.TCPStore("127.0.0.1", int(environment["MASTER_PORT"]), num_ranks, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks)
    findings = Findings(words_reduced=words_reduced(rank))
    for name, case in CASES.items():
        findings.gradients[name] = gradients_of(case, rank)
    for name, (told, _) in MISUSES.items():
        findings.errors[name] = error_of(told if rank == num_ranks - 1 else [(1.0, 2)], rank)
    findings.errors["nothing"] = error_of([(0.0, 2)], rank)
    # Nobody may leave while another still listens.
    dist.barrier()
    dist.destroy_process_group()
    return findings


@pytest.fixture(scope="module", params=[2, 3])
def findings(request) -> list[Findings]:
    work = functools.partial(go_through_all_cases, num_ranks=request.param)
    outcomes = run_processes(request.param, work, seconds=120.0)
    assert [outcome.error for outcome in outcomes] == [""] * request.param
    return [outcome.value for outcome in outcomes]


def check(findings: Sequence[Findings], name: str, weight_of: Callable[[int], float]) -> None:
    """Compares with the sum over ranks of their gradients, each with a weight, from one process."""
    for mine in findings:
        assert mine.gradients[name] == findings[0].gradients[name]
    for step, found in enumerate(findings[0].gradients[name]):
        model = build()
        for rank in range(len(findings)):
            if weight_of(rank):
                (weight_of(rank) * mean_loss(model, rank, step, BATCH_SIZES[rank])).backward()
        for values, parameter in zip(found, model.parameters(), strict=True):
            torch.testing.assert_close(tensor(values), parameter.grad.flatten(), rtol=1e-12, atol=1e-14)


def tensor(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("dtype", ["", ", float32"])
def test_the_mean_of_whole_batches_is_that_of_ddp_bit_by_bit(dtype, findings):
    for mine in findings:
        assert mine.gradients[f"mean of ones{dtype}"] == mine.gradients[f"ddp{dtype}"]


def test_mean_weighs_by_coverage_alone(findings):
    check(findings, "mean", lambda rank: COVERAGES[rank] / len(findings))


def test_self_normalised_weighs_by_coverage_and_batch_size(findings):
    total = sum(BATCH_SIZES[rank] * COVERAGES[rank] for rank in range(len(findings)))
    check(findings, "self_normalised", lambda rank: BATCH_SIZES[rank] * COVERAGES[rank] / total)


def test_with_whole_coverage_self_normalised_is_the_gradient_of_the_mean_over_all_rows(findings):
    model = build()
    every = torch.cat([rows(rank, 0, BATCH_SIZES[rank]) for rank in range(len(findings))])
    model(every).square().mean().backward()
    for values, parameter in zip(findings[0].gradients["self_normalised of ones"][0], model.parameters(), strict=True):
        torch.testing.assert_close(tensor(values), parameter.grad.flatten(), rtol=0, atol=1e-10)


def test_self_normalised_does_not_depend_on_the_scale_of_coverage(findings):
    for mine in findings:
        # A power of two, so that not even rounding differs.
        assert mine.gradients["self_normalised, scaled"] == mine.gradients["self_normalised"]


def test_a_rank_without_rows_whose_loss_is_not_a_number_does_not_count(findings):
    check(findings, "self_normalised of an empty batch", lambda rank: 0.0 if rank else 1.0)
    check(findings, "mean of an empty batch", lambda rank: 0.0 if rank else 0.5 / len(findings))


def test_a_step_costs_two_numbers_beside_the_gradients_however_many_buckets_there_are(findings):
    num_words = sum(parameter.numel() for parameter in build().parameters())
    for mine in findings:
        for first, *others in mine.words_reduced:
            assert first == 2
            assert sum(others) == num_words
        assert len(mine.words_reduced[-1]) > 2, "there was one bucket only"


@pytest.mark.parametrize("how", MISUSES)
def test_a_step_that_one_rank_does_not_tell_properly_fails_on_all(how, findings):
    *others, last = (mine.errors[how] for mine in findings)
    assert last.startswith(f"ConfigError: coverage_hook: {MISUSES[how][1]}")
    for error in others:
        assert error.startswith(f"ConfigError: coverage_hook: 1 of {len(findings)} ranks did not say the coverage")


def test_a_step_in_which_nothing_counts_fails(findings):
    for mine in findings:
        assert "every rank's batch is empty or has coverage 0" in mine.errors["nothing"]


def test_an_unknown_combination_is_refused_with_the_choices():
    with pytest.raises(ConfigError, match=r"Unknown combination 'snis'. Choices: mean, self_normalised"):
        laconic.coverage_hook("snis")
