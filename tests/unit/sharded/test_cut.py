"""The rate to begin with, from the share of neighbours elsewhere and from the degree; both as all ranks count them."""

import pytest
from tests.equivalence.halo_runs import make_graph
from tests.placing import place
from torch_geometric.nn import GraphSAGE

from laconic.comm.codecs import CODECS, parse_codec
from laconic.comm.codecs.base import PAPER_RATE
from laconic.comm.transport import run_ranks


@pytest.mark.parametrize("codec", ["subset", "prefix", "topk", "cache", "error_feedback(codec=topk)"])
@pytest.mark.parametrize(
    ("share", "rate"),
    # Random parts on 2, 4, 8 and 16 ranks, and a graph that hardly crosses ranks.
    [(0.5, PAPER_RATE), (0.75, 3.0), (0.875, 7 / 3), (0.9375, 15 / 7), (0.1, PAPER_RATE), (0.0, PAPER_RATE)],
)
def test_of_codecs_that_leave_columns_out_the_more_is_elsewhere_the_lower_the_first_rate(codec, share, rate):
    assert parse_codec(codec).first_rate(share, 10.0) == pytest.approx(rate)


@pytest.mark.parametrize("codec", ["boundary_sample", "subset(by='row', scale=True)"])
def test_errors_that_average_out_allow_the_more_the_more_neighbours_there_are(codec):
    rates = [parse_codec(codec).first_rate(0.75, degree) for degree in (3.0, 12.0, 1000.0)]
    assert rates == pytest.approx([3.0, 9.0, PAPER_RATE])
    assert parse_codec("subset(scale=True)").first_rate(0.75, 12.0) == pytest.approx(1 + 0.5 / 0.75)


@pytest.mark.parametrize(("share", "bits"), [(0.1, 1), (0.44, 1), (0.5, 2), (0.75, 2), (0.94, 2)])
def test_quantize_begins_with_the_bits_that_hold_the_error(share, bits):
    assert parse_codec("quantize").first_rate(share, 10.0) == 32 / bits
    # 1 bit would make its errors grow.
    assert parse_codec("error_feedback(codec=quantize)").first_rate(share, 10.0) == 16


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.77, 1.0])
def test_every_codec_begins_between_1_and_the_rate_of_the_paper(name, share):
    for degree in (0.0, 1.0, 50.0):
        assert 1 <= parse_codec(name).first_rate(share, degree) <= PAPER_RATE


@pytest.mark.parametrize("codec", ["subset", "boundary_sample"])
def test_schedules_that_are_told_no_rate_begin_with_that_of_the_cut(codec):
    graph = make_graph(90)
    models = [GraphSAGE(graph.num_features, 8, 2, 3).double() for _ in range(3)]

    def on_rank(transport):
        text = f"exchange(codec={codec}, schedule=linear(epochs=50), partitioner=random)"
        placed = place(text, graph, models[transport.rank], transport)
        plan, shard = placed.coding.rate_plan(models[transport.rank], []), placed.shard
        return plan.rates(1, 0, ()), set(shard.node_ids[: shard.num_owned].tolist())

    runs = run_ranks(3, on_rank)
    owner = {node: rank for rank, (_, ids) in enumerate(runs) for node in ids}
    source, destination = graph.node_ids[graph.edge_index].tolist()
    share = sum(owner[a] != owner[b] for a, b in zip(source, destination, strict=True)) / len(source)
    expected = parse_codec(codec).first_rate(share, len(source) / graph.num_nodes)
    assert 1 < expected < PAPER_RATE
    for rates, _ in runs:
        assert rates.max() == pytest.approx(expected)
