"""What goes wrong between ranks that compress: told on all of them, with layer, ranks and epoch, and nobody waits."""

import pytest
import torch
from tests.equivalence.altering import Altering, flip, shift
from tests.equivalence.coded_runs import run_coded, sage, step
from tests.equivalence.halo_runs import make_graph
from tests.placing import place, start

from laconic.comm import coded_exchange
from laconic.comm.transport import run_ranks
from laconic.errors import CommunicationError, ConfigError, DivergedError, LaconicError


def errors_of(function, num_ranks: int = 3) -> list[LaconicError]:
    """Runs `function` on ranks of which all should fail, and returns how each did."""
    errors: dict[int, LaconicError] = {}

    def on_rank(transport):
        try:
            function(transport)
        except LaconicError as error:
            errors[transport.rank] = error
            raise

    with pytest.raises(LaconicError):
        run_ranks(num_ranks, on_rank, timeout=30)
    assert sorted(errors) == list(range(num_ranks)), "a rank went on, or waits"
    return [errors[rank] for rank in range(num_ranks)]


def train(transport, text: str = "codec=quantize(bits=4)", *, epochs: int = 4, models=None) -> None:
    model = (models or MODELS)[transport.rank]
    worker = start(f"exchange({text}, partitioner=random, edges=destination, reach=0)", GRAPH, model, transport, seed=5)
    try:
        for epoch in range(1, epochs + 1):
            step(worker, epoch)
    finally:
        worker.attachment.detach()


GRAPH, MODELS = make_graph(90), [sage() for _ in range(3)]


@pytest.mark.parametrize(
    "alter", [flip(45), flip(4), flip(2), flip(-1), shift], ids=["payload", "first", "sum", "last", "cut"]
)
def test_a_message_that_was_altered_is_refused_with_its_place_on_all_ranks(alter):
    # Four exchanges an epoch: two layers, there and back.
    told = r"layer 1, forward, from rank \d to rank 1, in epoch 2.*checksum"
    for error in errors_of(lambda transport: train(Altering(transport, alter, 4))):
        with pytest.raises(CommunicationError, match=told):
            raise error


def test_a_message_of_another_epoch_is_refused_with_both_on_all_ranks():
    kept = {}

    # Every fourth is of the same layer and direction: one epoch later, that of the epoch before comes again.
    def alter(out):
        kept["count"] = kept.get("count", 0) + 1
        if kept["count"] == 1:
            kept["frame"] = out.clone()
        if kept["count"] == 5:
            out.copy_(kept["frame"])

    for error in errors_of(lambda transport: train(Altering(transport, alter, 0))):
        with pytest.raises(CommunicationError, match=r"to rank 1, in epoch 2\): its epoch is 1, not 2"):
            raise error


def test_a_message_of_another_plan_is_refused_on_all_ranks():
    def run(transport):
        text = "exchange(codec=quantize(bits=4), partitioner=random, edges=destination, reach=0)"
        placed = place(text, GRAPH, MODELS[transport.rank], transport)
        # As if rank 2 had not heard of a change of the graph.
        placed.placement.exchange.version = 0 if transport.rank == 2 else 1
        worker = placed.start(seed=5)
        try:
            step(worker, 3)
        finally:
            worker.attachment.detach()

    told = r"layer 1, forward, from rank \d to rank \d, in epoch 3\): its plan version is (0, not 1|1, not 0)"
    for error in errors_of(run):
        with pytest.raises(CommunicationError, match=told):
            raise error


@pytest.mark.parametrize("num_bytes", [1, 5, -1, -30])
def test_a_message_of_another_length_is_refused_on_all_ranks(monkeypatch, num_bytes):
    """Sizes that are told first, as those of relu_bitmap: rank 2 tells others, and sends longer or shorter frames."""
    plain = coded_exchange.add_header

    def add_header(packet, key, version):
        frame = plain(packet, key, version)
        if key.sender != 2 or key.receiver != 1:
            return frame
        return torch.cat([frame, frame[:num_bytes]]) if num_bytes > 0 else frame[:num_bytes]

    monkeypatch.setattr(coded_exchange, "add_header", add_header)
    told = r"layer 1, forward, from rank 2 to rank 1, in epoch 1"
    for error in errors_of(lambda transport: train(transport, "codec=relu_bitmap")):
        with pytest.raises(LaconicError, match=told):
            raise error


def test_a_number_that_is_not_finite_is_refused_by_layer_and_node_on_all_ranks():
    models = [sage() for _ in range(3)]
    with torch.no_grad():
        models[0].convs[0].lin_l.bias[3] = float("nan")
    told = r"node \d+ has nan in column 3: layer 1, forward, from rank \d .* in epoch 1"
    errors = errors_of(lambda transport: train(transport, models=models))
    assert any(isinstance(error, DivergedError) for error in errors)
    for error in errors:
        with pytest.raises(LaconicError, match=told):
            raise error


@pytest.mark.parametrize(
    "texts",
    [
        ("codec=subset, schedule=constant(value=4.0)", "codec=subset, schedule=constant(value=5.0)"),
        ("codec=subset", "codec=identity"),
        ("codec=subset", "codec=subset, raw_last=True"),
    ],
    ids=["schedule", "codec", "raw_last"],
)
def test_ranks_with_different_settings_are_refused_on_all_ranks(texts):
    told = r"Ranks disagree: (schedule is constant\(value=4.0\)|codec is subset|raw_last is False) on ranks 0, 1 and "
    for error in errors_of(lambda transport: train(transport, texts[transport.rank // 2])):
        with pytest.raises(LaconicError, match=told):
            raise error


def test_a_rate_above_the_width_is_refused_on_all_ranks_before_the_first_epoch():
    for error in errors_of(lambda t: train(t, "codec=subset, schedule=constant(value=25.0)", epochs=0)):
        with pytest.raises(
            ConfigError, match=r"rate of 25 is above the width of the widest row.*24.*rate of 24 at most"
        ):
            raise error
    # The last layer is narrower, and is sent as one column.
    run_ranks(3, lambda t: train(t, "codec=subset, schedule=constant(value=24.0)", epochs=1))


@pytest.mark.parametrize(
    "schedule", ["budget(num_bytes=100, most=16.0, epochs=6)", "adaptive(num_bytes=100, most=16.0, epochs=6)"]
)
def test_a_budget_below_the_least_is_refused_on_all_ranks_before_the_first_epoch(schedule):
    for error in errors_of(lambda transport: train(transport, f"codec=subset, schedule={schedule}", epochs=0)):
        with pytest.raises(LaconicError, match=r"6 epochs cost .* at least .*more than the 100 bytes"):
            raise error


def test_the_least_that_is_told_is_enough():
    errors = errors_of(lambda t: train(t, "codec=subset, schedule=budget(num_bytes=1, most=16.0, epochs=6)", epochs=0))
    least = int(str(errors[0]).split(" at least (")[1].split(" bytes")[0])
    run_coded(f"codec=subset, schedule=budget(num_bytes={least}, most=16.0, epochs=6)", 1)
    with pytest.raises(ConfigError):
        run_coded(f"codec=subset, schedule=budget(num_bytes={least - 1}, most=16.0, epochs=6)", 1)
