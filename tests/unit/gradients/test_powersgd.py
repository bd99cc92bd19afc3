import pytest
import torch

from laconic.comm import Communicator, Ledger, LocalTransport
from laconic.errors import ConfigError
from laconic.gradients.reductions import PowerSgd


def of_rank(rank: int, *, seed: int, shape: tuple[int, int] = (30, 20)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(shape[0], rank, generator=generator, dtype=torch.float64)
    return left @ torch.randn(rank, shape[1], generator=generator, dtype=torch.float64)


def any_matrix(rank: int, step: int) -> torch.Tensor:
    return torch.randn(30, 20, generator=torch.Generator().manual_seed(50 * step + rank), dtype=torch.float64)


def test_a_mean_of_low_rank_is_sent_exactly_though_no_ranks_own_gradient_is(on_ranks):
    noise = any_matrix(0, 0)

    def run(communicator):
        reducer = PowerSgd(rank=2).reducer(communicator)
        sign = 1 if communicator.rank == 0 else -1
        return [reducer.means({"w": of_rank(2, seed=step) + sign * noise})["w"] for step in range(3)]

    for step, mean in enumerate(on_ranks(2, run)[0]):
        torch.testing.assert_close(mean, of_rank(2, seed=step), rtol=0, atol=1e-10)


def test_warm_starts_find_the_best_approximation_of_a_gradient_that_stays(on_ranks):
    gradient = any_matrix(0, 0)
    u, s, vh = torch.linalg.svd(gradient)
    best = u[:, :3] * s[:3] @ vh[:3]

    def run(communicator):
        reducer = PowerSgd(rank=3).reducer(communicator)
        distances = []
        for _ in range(200):
            # Without the errors, the same matrix is met again and again.
            reducer.errors = {name: torch.zeros_like(error) for name, error in reducer.errors.items()}
            distances.append(float((reducer.means({"w": gradient})["w"] - best).norm()))
        return distances

    distances = on_ranks(2, run)[0]
    assert distances[0] > 1
    assert distances[-1] < 1e-6


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_what_was_sent_and_what_is_owed_is_all_that_there_was(num_ranks, on_ranks):
    num_steps = 12

    def run(communicator):
        reducer = PowerSgd(rank=2).reducer(communicator)
        sent = sum(reducer.means({"w": any_matrix(communicator.rank, step)})["w"] for step in range(num_steps))
        return sent, reducer.errors["w"]

    results = on_ranks(num_ranks, run)
    sent = results[0][0]
    owed = torch.stack([error for _, error in results]).mean(0)
    every = [any_matrix(rank, step) for rank in range(num_ranks) for step in range(num_steps)]
    torch.testing.assert_close(sent + owed, torch.stack(every).sum(0) / num_ranks, rtol=0, atol=1e-10)
    assert float(owed.norm()) > 1, "nothing was left out, so nothing was tested"


def test_what_ranks_do_not_have_in_common_does_not_pile_up(on_ranks):
    difference = any_matrix(1, 0)

    def run(communicator):
        reducer = PowerSgd(rank=2).reducer(communicator)
        sign = 1 if communicator.rank == 0 else -1
        for step in range(300):
            reducer.means({"w": of_rank(2, seed=step) + sign * difference})
        return float(reducer.errors["w"].norm())

    assert max(on_ranks(2, run)) < 30 * float(difference.norm())


def test_a_gradient_of_zero_leaves_a_start_that_finds_the_next_one(on_ranks):
    def run(communicator):
        reducer = PowerSgd(rank=2).reducer(communicator)
        gradients = [torch.zeros(30, 20).double(), of_rank(1, seed=0), of_rank(2, seed=1)]
        return [reducer.means({"w": gradient})["w"] for gradient in gradients]

    zero, one, two = on_ranks(2, run)[0]
    assert not zero.any()
    torch.testing.assert_close(one, of_rank(1, seed=0), rtol=0, atol=1e-10)
    torch.testing.assert_close(two, of_rank(2, seed=1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e20])
def test_the_size_of_gradients_does_not_matter(scale, on_ranks):
    given = of_rank(2, seed=0).float() * scale

    def run(communicator):
        reducer = PowerSgd(rank=2).reducer(communicator)
        return [reducer.means({"w": given})["w"] for _ in range(3)][-1]

    torch.testing.assert_close(on_ranks(2, run)[0] / scale, given / scale, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_not_hidden(value, on_ranks):
    given = any_matrix(0, 0)
    given[3, 4] = value
    for mean in on_ranks(2, lambda communicator: PowerSgd().reducer(communicator).means({"w": given})["w"]):
        assert not bool(mean.isfinite().all())


def test_a_matrix_costs_its_factors_and_the_rest_its_words(on_ranks):
    num_ranks, rank = 3, 2
    shapes = {"matrix": (30, 20), "cube": (8, 4, 5), "vector": (7,), "small": (3, 4)}

    def run(communicator):
        with communicator.ledger.phase("gradients"):
            PowerSgd(rank=rank).reducer(communicator).means({name: torch.ones(shape) for name, shape in shapes.items()})
        return communicator.ledger.take(1)

    rows = [row for rows in on_ranks(num_ranks, run) for row in rows]
    assert {(row.phase, row.operation) for row in rows} == {("gradients", "all_reduce")}
    # Factors of the small one would be 14 words, for 12.
    num_words = rank * (30 + 20) + rank * (8 + 20) + 7 + 3 * 4
    for direction in ("sent", "received"):
        told = [row for row in rows if row.direction == direction]
        assert sum(row.num_bytes for row in told) == 2 * (num_ranks - 1) * 4 * num_words
        # Two all_reduces.
        assert {row.num_messages for row in told} == {2 * 2 * (num_ranks - 1)}


def test_state_of_other_numbers_of_ranks_keeps_what_is_owed(on_ranks):
    def begin(communicator):
        reducer = PowerSgd(rank=2).reducer(communicator)
        reducer.means({"w": any_matrix(communicator.rank, 0)})
        return reducer.state()

    state = on_ranks(3, begin)[0]
    owed = state["w.error"].mean(0)

    def go_on(communicator):
        reducer = PowerSgd(rank=2).reducer(communicator)
        reducer.load_state(state)
        sent = reducer.means({"w": any_matrix(communicator.rank, 1)})["w"]
        return sent + reducer.state()["w.error"].mean(0)

    given = (any_matrix(0, 1) + any_matrix(1, 1)) / 2
    torch.testing.assert_close(on_ranks(2, go_on)[0], given + owed, rtol=0, atol=1e-10)

    alone = PowerSgd(rank=2).reducer(Communicator(LocalTransport(), Ledger(0)))
    alone.load_state(state)
    sent = [alone.means({"w": any_matrix(0, step)})["w"] for step in (1, 2)]
    torch.testing.assert_close(sent[0], any_matrix(0, 1) + owed, rtol=0, atol=1e-10)
    assert torch.equal(sent[1], any_matrix(0, 2))
    assert alone.state() == {}


def test_the_errors_travel_to_checkpoints_under_their_own_phase(on_ranks):
    def run(communicator):
        reducer = PowerSgd(rank=2).reducer(communicator)
        reducer.means({"w": any_matrix(communicator.rank, 0)})
        communicator.ledger.take(1)
        reducer.state()
        return communicator.ledger.take(1)

    for rows in on_ranks(2, run):
        assert [(row.phase, row.operation, row.num_bytes) for row in rows] == [("checkpoint", "all_gather", 4800)] * 2


def test_state_of_another_rank_is_refused():
    reducer = PowerSgd(rank=3).reducer(Communicator(LocalTransport(), Ledger(0)))
    with pytest.raises(ValueError, match=r"powersgd\(rank=3\) has no right factor of shape \(20, 2\) for w"):
        reducer.load_state({"w.error": torch.zeros(2, 30, 20), "w.right": torch.zeros(20, 2)})


def test_a_rank_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="rank should be 1 or more, got 0"):
        PowerSgd(rank=0)
