"""What every gradient reduction promises. A new member is tested here by being in GRADIENT_REDUCTIONS."""

import functools
import itertools

import pytest
import torch
from tests.processes.rank_processes import Environment, run_processes
from torch import nn

from laconic.comm import Communicator, Ledger, LocalTransport, connect
from laconic.comm.transport.silent import SilentTransport
from laconic.errors import ConfigError
from laconic.gradients.reductions import GRADIENT_REDUCTIONS, parse_reduction
from laconic.gradients.shared import SharedGradients
from laconic.specs import format_spec

SHAPES = {"first.weight": (24, 17), "first.bias": (24,), "scale": (), "cube": (6, 9, 5), "row": (1, 30)}
# Largest error of one step, as a share of the largest gradient; None where only many steps together are near.
NEARNESS = {"exact": 1e-7, "bf16": 2**-7, "powersgd": None}


def gradients(rank: int, step: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return {name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in SHAPES.items()}


def true_means(num_ranks: int, step: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    every = [gradients(rank, step, dtype) for rank in range(num_ranks)]
    return {name: torch.stack([each[name].double() for each in every]).mean(0) for name in SHAPES}


def reduce_steps(communicator: Communicator, name: str, num_steps: int, dtype: torch.dtype = torch.float32):
    reducer = parse_reduction(name).reducer(communicator)
    return [reducer.means(gradients(communicator.rank, step, dtype)) for step in range(num_steps)]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", GRADIENT_REDUCTIONS)
def test_the_shortest_spec_of_a_default_reduction_is_its_name(name):
    assert format_spec(parse_reduction(name), GRADIENT_REDUCTIONS) == name
    assert GRADIENT_REDUCTIONS[name].__module__ == f"laconic.gradients.reductions.{name}"


def test_an_unknown_reduction_is_refused_with_the_choices():
    with pytest.raises(ConfigError, match=r"Unknown gradient reduction 'bf61'. Choices: .* Did you mean 'bf16'"):
        parse_reduction("bf61")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("name", GRADIENT_REDUCTIONS)
def test_all_ranks_get_equal_means_of_the_shapes_and_dtypes_that_came(name, num_ranks, dtype, on_ranks):
    results = on_ranks(num_ranks, lambda communicator: reduce_steps(communicator, name, 3, dtype))
    for mine in results:
        for step, means in enumerate(mine):
            assert same(means, results[0][step])
            for key, mean in means.items():
                assert (tuple(mean.shape), mean.dtype) == (SHAPES[key], dtype)
                assert bool(mean.any())


@pytest.mark.parametrize("name", GRADIENT_REDUCTIONS)
def test_equal_input_gives_equal_output_in_every_run(name, on_ranks):
    first, again = (on_ranks(3, lambda communicator: reduce_steps(communicator, name, 3))[0] for _ in range(2))
    assert all(same(*pair) for pair in zip(first, again, strict=True))


@pytest.mark.parametrize("name", [name for name, near in NEARNESS.items() if near is not None])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_means_are_as_near_as_promised(name, num_ranks, on_ranks):
    (means,) = on_ranks(num_ranks, lambda communicator: reduce_steps(communicator, name, 1))[0]
    for key, expected in true_means(num_ranks, 0).items():
        largest = max(float(gradients(rank, 0)[key].abs().max()) for rank in range(num_ranks))
        torch.testing.assert_close(means[key].double(), expected, rtol=0, atol=NEARNESS[name] * largest)


def test_every_reduction_says_how_near_it_is():
    assert NEARNESS.keys() == GRADIENT_REDUCTIONS.keys()


@pytest.mark.parametrize("name", GRADIENT_REDUCTIONS)
def test_what_comes_is_left_as_it_was(name, on_ranks):
    def run(communicator):
        reducer, given = parse_reduction(name).reducer(communicator), gradients(communicator.rank, 0)
        reducer.means(given)
        reducer.means(given)
        return same(given, gradients(communicator.rank, 0))

    assert all(on_ranks(2, run))


@pytest.mark.parametrize("name", GRADIENT_REDUCTIONS)
def test_one_rank_alone_keeps_its_gradients_bit_by_bit_and_sends_nothing(name):
    communicator = Communicator(LocalTransport(), Ledger(0))
    for step, means in enumerate(reduce_steps(communicator, name, 3)):
        assert same(means, gradients(0, step))
    assert communicator.ledger.take(1) == []


@pytest.mark.parametrize("name", GRADIENT_REDUCTIONS)
def test_a_reducer_goes_on_from_its_state_as_if_it_had_never_stopped(name, on_ranks):
    def run(communicator):
        whole = reduce_steps(communicator, name, 6)
        first, second = (parse_reduction(name).reducer(communicator) for _ in range(2))
        for step in range(3):
            first.means(gradients(communicator.rank, step))
        state = first.state()
        second.load_state(state)
        rest = [second.means(gradients(communicator.rank, step)) for step in range(3, 6)]
        return state, all(same(*pair) for pair in zip(whole[3:], rest, strict=True))

    results = on_ranks(3, run)
    for state, is_same in results:
        # Whichever rank writes the checkpoint, it is whole.
        assert same(state, results[0][0])
        assert is_same


@pytest.mark.parametrize("name", GRADIENT_REDUCTIONS)
def test_a_state_of_something_else_is_refused(name):
    reducer = parse_reduction(name).reducer(Communicator(LocalTransport(), Ledger(0)))
    with pytest.raises(ValueError, match="lin"):
        reducer.load_state({"lin.weight.q": torch.ones(2)})


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("name", GRADIENT_REDUCTIONS)
def test_a_rehearsal_with_gradients_of_zero_counts_what_training_sends(name, num_ranks, on_ranks):
    def train(communicator):
        reduce_steps(communicator, name, 2)
        return communicator.ledger.take(1)

    def rehearse(rank):
        communicator = Communicator(SilentTransport(rank, num_ranks), Ledger(rank))
        reducer = parse_reduction(name).reducer(communicator)
        for _ in range(2):
            reducer.means({key: torch.zeros(shape) for key, shape in SHAPES.items()})
        return communicator.ledger.take(1)

    counted = on_ranks(num_ranks, train)
    assert all(counted)
    assert counted == [rehearse(rank) for rank in range(num_ranks)]


class Forked(nn.Module):
    """Rank 0 uses one branch, rank 1 the other, and nobody the third."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(20, 20) for _ in range(3))

    def forward(self, x, branch):
        return self.branches[branch](x)


@pytest.mark.parametrize("name", GRADIENT_REDUCTIONS)
def test_shared_gradients_keep_their_promises(name, on_ranks):
    torch.manual_seed(0)
    models = [Forked() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    x = torch.randn(5, 20)

    def run(communicator):
        model = models[communicator.rank]
        shared = SharedGradients(model, communicator, reduction=parse_reduction(name))
        penalty = 0.5 * model.branches[0].bias.square().sum()
        (shared.share(model(x, communicator.rank).sum() / 2) + penalty).backward()
        return [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]

    ours, theirs = on_ranks(2, run)
    for mine, other in zip(ours[:4], theirs[:4], strict=True):
        assert torch.equal(mine, other)
    assert ours[4:] == theirs[4:] == [None, None]
    # Of rank one, so that powersgd has it at once; the bias has the penalty, once.
    weight = (x.sum(0) / 2).expand(20, 20)
    near = {"rtol": 2**-6, "atol": 1e-5}
    for grad, expected in zip(
        ours, [weight, 2.5 + models[0].branches[0].bias, weight, torch.full((20,), 2.5)], strict=False
    ):
        torch.testing.assert_close(grad, expected.detach(), **near)


def reduce_in_a_process(environment: Environment, *, name: str) -> list[list[list[float]]]:
    torch.set_num_threads(1 + int(environment["RANK"]))
    with connect(environment, timeout=20.0) as transport:
        steps = reduce_steps(Communicator(transport, Ledger(transport.rank)), name, 3)
        return [[means[key].flatten().tolist() for key in SHAPES] for means in steps]


@pytest.mark.parametrize("name", GRADIENT_REDUCTIONS)
def test_real_processes_get_equal_means_too(name, on_ranks):
    outcomes = run_processes(2, functools.partial(reduce_in_a_process, name=name))
    assert [outcome.error for outcome in outcomes] == ["", ""]
    assert outcomes[0].value == outcomes[1].value
    threads = on_ranks(2, lambda communicator: reduce_steps(communicator, name, 3))[0]
    for step, key in itertools.product(range(3), SHAPES):
        number = list(SHAPES).index(key)
        expected = torch.tensor(outcomes[0].value[step][number]).view(SHAPES[key])
        torch.testing.assert_close(threads[step][key], expected, rtol=1e-4, atol=1e-5)
