"""A model that is attached, compiled, detached, attached again, or called on another graph."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GCN, GraphSAGE, TransformerConv

import laconic
from laconic.errors import ConfigError, UnsupportedModelError

STRATEGIES = ["exchange", "exchange(codec=quantize(bits=4))", "gradient_only", "full_graph"]


def trained(session, model, num_epochs=2):
    """The losses of a few epochs, from attaching on."""
    model = session.attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _, shard in session.epochs(num_epochs):
        loss = session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def make_model(**settings):
    torch.manual_seed(0)
    return GCN(8, 16, 2, 4, dropout=0.5, norm="batch_norm", **settings).double()


def test_detach_gives_the_model_back_with_the_weights_it_learnt(make_graph):
    graph, model = make_graph(dtype=torch.float64), make_model()
    keys = set(model.__dict__)
    session = laconic.join(graph)
    trained(session, model)
    learnt = copy.deepcopy(model.state_dict())
    assert session.detach() is model
    assert set(model.__dict__) == keys
    assert all(torch.equal(value, learnt[name]) for name, value in model.state_dict().items())
    with pytest.raises(ConfigError, match=r"no model in this session.*session\.attach"):
        session.detach()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_model_that_is_attached_again_goes_on_from_its_weights(strategy, num_ranks, make_graph, on_ranks):
    graph, model = make_graph(dtype=torch.float64), make_model()

    def work(communicator):
        mine = copy.deepcopy(model)
        session = laconic.join(graph, strategy=strategy, communicator=communicator)
        losses = trained(session, mine)
        after = copy.deepcopy(mine)
        again = trained(session, mine)
        other = laconic.join(graph, strategy=strategy, communicator=communicator)
        third = trained(other, mine)
        session.detach()
        return losses, again, third, trained(session, after)

    for losses, again, third, fresh in on_ranks(num_ranks, work):
        assert again == fresh
        assert losses != again != third


def test_a_second_model_is_told_to_detach_the_first(make_graph, on_ranks):
    graph = make_graph(dtype=torch.float64)

    def work(communicator):
        session = laconic.join(graph, communicator=communicator)
        session.attach(make_model())
        second = make_model()
        with pytest.raises(ConfigError, match=r"Call session\.detach\(\) before the next session\.attach\(model\)"):
            session.attach(second)
        session.detach()
        return trained(session, second)

    first, second = on_ranks(2, work)
    assert first == second


def test_a_session_leaves_a_model_alone_that_another_one_has_taken_over(small_graph):
    model = GCN(8, 16, 2, 4)
    first, second = laconic.join(small_graph), laconic.join(small_graph)
    first.attach(model)
    second.attach(model)
    first.detach()
    assert model.laconic_scope.shard is second.shard
    assert second.detach() is model
    assert not hasattr(model, "laconic_scope")


def test_a_part_of_an_attached_model_is_not_attached_elsewhere(small_graph):
    model = GCN(8, 16, 2, 4)
    laconic.join(small_graph).attach(model)
    with pytest.raises(ConfigError, match=r"a part of it, is attached to a graph already.*session\.detach\(\)"):
        laconic.join(small_graph).attach(model.convs[0])


@pytest.mark.parametrize(
    ("strategy", "build"),
    [
        *((strategy, make_model) for strategy in (*STRATEGIES, 'full_graph(grid="feature")')),
        ("exchange", lambda: TransformerConv(8, 4).double()),
    ],
)
def test_in_evaluation_a_model_on_ranks_runs_on_another_graph_as_plain_pyg_does(strategy, build, make_graph, on_ranks):
    graph, other, model = make_graph(dtype=torch.float64), make_graph(23, 90, seed=5, dtype=torch.float64), build()

    def work(communicator):
        mine = copy.deepcopy(model)
        session = laconic.join(graph, strategy=strategy, communicator=communicator)
        trained(session, mine)
        plain = copy.deepcopy(mine)
        laconic.attach.release(plain)
        with torch.no_grad():
            out = mine.eval()(other.x, other.edge_index)
            # As before: on the shard, ranks still work together.
            scores = session.evaluate()
        # After `evaluate` the running means are those of all ranks.
        plain.load_state_dict(mine.state_dict())
        with torch.no_grad():
            torch.testing.assert_close(out, plain.eval()(other.x, other.edge_index), rtol=0, atol=1e-10)
        return scores

    first, second = on_ranks(2, work)
    assert first == second


def test_in_training_or_with_rows_of_the_shard_another_graph_is_refused(make_graph, on_ranks):
    graph, other = make_graph(dtype=torch.float64), make_graph(23, 90, seed=5, dtype=torch.float64)

    def work(communicator):
        session = laconic.join(graph, communicator=communicator)
        model, shard = session.attach(make_model()), session.shard
        words = r"edge_index other than the graph's own.*in evaluation.*whole graph"
        with pytest.raises(UnsupportedModelError, match=words):
            model(other.x, other.edge_index)
        model.eval()
        for x, edge_index in [(shard.x, shard.edge_index.clone()), (shard.x.clone(), shard.edge_index.clone())]:
            with pytest.raises(UnsupportedModelError, match=words):
                model(x, edge_index)

    on_ranks(2, work)


def test_a_bf16_model_trains_on_two_ranks_as_on_one_but_for_rounding(make_graph, on_ranks):
    graph = make_graph(dtype=torch.bfloat16)
    torch.manual_seed(0)
    model = GraphSAGE(8, 16, 2, 4).bfloat16()

    def work(communicator):
        return trained(laconic.join(graph, communicator=communicator), copy.deepcopy(model), num_epochs=5)

    alone = trained(laconic.join(graph), copy.deepcopy(model), num_epochs=5)
    assert alone[-1] < alone[0]
    for losses in on_ranks(2, work):
        assert losses == pytest.approx(alone, rel=0.02)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_an_attached_model_may_be_compiled_and_gives_the_same(num_ranks, make_graph, on_ranks):
    graph, model = make_graph(dtype=torch.float64), make_model()

    def work(communicator):
        found = []
        for compile_it in (lambda m: m, lambda m: torch.compile(m, backend="eager"), compiled_in_place):
            session = laconic.join(graph, communicator=communicator)
            attached = session.attach(copy.deepcopy(model))
            compiled = compile_it(attached)
            for _, shard in session.epochs(1):
                session.loss(F.cross_entropy, compiled(shard.x, shard.edge_index), shard).backward()
            found.append([parameter.grad for parameter in attached.parameters()])
        return found

    for plain, wrapped, in_place in on_ranks(num_ranks, work):
        for one, two, three in zip(plain, wrapped, in_place, strict=True):
            assert torch.equal(one, two)
            assert torch.equal(one, three)


def compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def test_a_model_that_was_compiled_first_is_told_what_to_attach(small_graph):
    compiled = torch.compile(GCN(8, 16, 2, 4), backend="eager")
    with pytest.raises(
        UnsupportedModelError, match=r"session\.attach\(model\._orig_mod\) and then torch\.compile\(model\)"
    ):
        laconic.join(small_graph).attach(compiled)
