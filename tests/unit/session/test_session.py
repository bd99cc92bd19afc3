"""Laconic under a loop of one's own: the diff in the README, and what it promises."""

import copy
import importlib.util
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import laconic
from laconic.errors import ConfigError, RankFailedError

EXAMPLE = Path(__file__).parents[3] / "examples" / "plain_loop.py"


def test_the_example_learns_and_differs_from_a_plain_loop_by_five_lines(capsys):
    specification = importlib.util.spec_from_file_location("plain_loop", EXAMPLE)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    with torch.random.fork_rng():
        scores = module.main("sbm(nodes=300)", num_epochs=20)
    assert scores["test"] > 0.6
    assert "epoch 20: loss" in capsys.readouterr().out
    assert EXAMPLE.read_text().count("  # +\n") == 5


def test_the_loss_is_the_mean_over_the_training_nodes(small_graph):
    session = laconic.join(small_graph)
    model = session.attach(GCN(8, 16, 2, 4))
    shard = session.shard
    out = model(shard.x, shard.edge_index)
    expected = F.cross_entropy(out[small_graph.train_mask], small_graph.y[small_graph.train_mask])
    torch.testing.assert_close(session.loss(F.cross_entropy, out, shard), expected)


def test_a_session_scores_on_the_whole_graph_without_dropout(small_graph):
    session = laconic.join(small_graph)
    model = session.attach(GCN(8, 16, 2, 4, dropout=0.9))
    shard = session.shard
    scores = session.evaluate()
    assert model.training
    model.eval()
    hits = model(shard.x, shard.edge_index).argmax(1) == shard.y
    assert scores["val"] == pytest.approx(float(hits[shard.val_mask].float().mean()), abs=1e-6)


def test_epochs_move_the_keys_of_dropout(small_graph):
    session = laconic.join(small_graph, seed=3)
    model = session.attach(GCN(8, 16, 2, 4, dropout=0.5))
    passes = [[model(shard.x, shard.edge_index).detach() for _, shard in session.epochs(2)] for _ in range(2)]
    assert torch.equal(passes[0][0], passes[1][0])
    assert not torch.equal(passes[0][0], passes[0][1])


def test_a_pyg_data_object_and_a_file_are_the_same_graph(small_graph, tmp_path):
    fields = ("x", "y", "edge_index", "train_mask", "val_mask", "test_mask")
    data = Data(**{name: getattr(small_graph, name) for name in fields})
    laconic.save_npz(small_graph, tmp_path / "small.npz")
    from_data, from_file = laconic.join(data).data, laconic.join(tmp_path / "small.npz").data
    for name in fields:
        if name != "edge_index":
            assert torch.equal(getattr(from_data, name), getattr(from_file, name)), name
    assert sorted(from_data.edge_index.t().tolist()) == sorted(from_file.edge_index.t().tolist())


def test_a_session_without_a_model_says_what_to_call(small_graph):
    session = laconic.join(small_graph)
    with pytest.raises(ConfigError, match=r"session\.attach"):
        next(iter(session.epochs(3)))
    with pytest.raises(ConfigError, match=r"session\.attach"):
        session.evaluate()


def test_an_unknown_strategy_lists_the_choices(small_graph):
    with pytest.raises(ConfigError, match=r"Unknown strategy 'singel'.*Did you mean 'single'"):
        laconic.join(small_graph, strategy="singel")


def one_step(graph, model, communicator=None):
    """Rank, loss, gradients and scores after one step of a session; `model` is only copied."""
    session = laconic.join(graph, seed=3, communicator=communicator)
    model = session.attach(copy.deepcopy(model))
    for _, shard in session.epochs(1):
        loss = session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard)
        loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return session.rank, loss.item(), gradients, session.evaluate()


def test_a_session_of_ranks_has_the_loss_gradients_and_scores_of_one_rank(make_graph, on_ranks):
    graph, model = make_graph(dtype=torch.float64), GCN(8, 16, 2, 4, dropout=0.5).double()
    _, loss, gradients, scores = one_step(graph, model)
    ranks = on_ranks(3, lambda communicator: one_step(graph, model, communicator))
    assert [rank for rank, *_ in ranks] == [0, 1, 2]
    for _, shared_loss, shared_gradients, shared_scores in ranks:
        assert shared_loss == ranks[0][1] == pytest.approx(loss, rel=0, abs=1e-10)
        assert shared_scores == scores
        for name, gradient in gradients.items():
            torch.testing.assert_close(shared_gradients[name], gradient, rtol=0, atol=1e-10, msg=name)
            assert torch.equal(shared_gradients[name], ranks[0][2][name]), f"{name} differs between ranks"


def test_ranks_begin_with_the_weights_of_rank_0(make_graph, on_ranks):
    graph, model = make_graph(dtype=torch.float64), GCN(8, 16, 2, 4).double()
    others = copy.deepcopy(model)
    torch.nn.init.zeros_(next(others.parameters()))

    def loss_of(communicator):
        return one_step(graph, others if communicator.rank else model, communicator)[1]

    for loss in on_ranks(2, loss_of):
        assert loss == pytest.approx(one_step(graph, model)[1], rel=0, abs=1e-10)


@pytest.mark.parametrize(
    ("seeds", "graph_seeds", "named"),
    [((0, 1), (0, 0), "seed is 0 on rank 0 and 1 on rank 1"), ((0, 0), (0, 1), r"data\.checksum is")],
)
def test_ranks_that_join_with_different_seeds_or_graphs_are_told(make_graph, on_ranks, seeds, graph_seeds, named):
    def join(communicator):
        graph = make_graph(seed=graph_seeds[communicator.rank])
        laconic.join(graph, seed=seeds[communicator.rank], communicator=communicator)

    with pytest.raises(ConfigError, match=named):
        on_ranks(2, join)


def test_a_session_tells_the_other_ranks_that_this_one_fails(small_graph, on_ranks):
    told, is_told = [], threading.Event()

    def work(communicator):
        try:
            with laconic.join(small_graph, communicator=communicator) as session:
                if session.rank == 1:
                    raise ZeroDivisionError("the disk is full")
                session.attach(GCN(8, 16, 2, 4))
        except RankFailedError as error:
            told.append(str(error))
            is_told.set()
        except ZeroDivisionError:
            # By the session: this thread has not ended yet.
            assert is_told.wait(10)

    with pytest.raises(ZeroDivisionError):
        on_ranks(2, work)
    assert told == ["Rank 1 failed: ZeroDivisionError: the disk is full"]


def test_every_public_name_is_there():
    for name in laconic.__all__:
        assert getattr(laconic, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        laconic.nothing  # noqa: B018


def test_a_session_goes_on_with_a_changed_graph(small_graph):
    session = laconic.join(small_graph, strategy="exchange")
    model = session.attach(GCN(8, 16, 2, 4))
    num_nodes, num_edges = small_graph.num_nodes, small_graph.num_edges
    first, last = int(small_graph.node_ids[0]), int(small_graph.node_ids.max())
    change = laconic.GraphChange(
        add_nodes=laconic.NewNodes(ids=torch.tensor([last + 1]), x=torch.ones(1, 8)),
        add_edges=torch.tensor([[last + 1, first], [first, last + 1]]),
    )
    for epoch, shard in session.epochs(3):
        if epoch == 2:
            shard = session.change(change)
        loss = session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard)
        loss.backward()
    assert shard.num_rows == num_nodes + 1
    assert shard.edge_index.shape[1] == num_edges + 2
    scores = session.evaluate()
    hits = model.eval()(shard.x, shard.edge_index).argmax(1) == shard.y
    assert scores["val"] == pytest.approx(float(hits[shard.val_mask].float().mean()), abs=1e-6)


@pytest.mark.parametrize("strategy", ["single", "gradient_only", "full_graph"])
def test_strategies_that_cannot_change_their_graph_say_which_can(small_graph, strategy):
    session = laconic.join(small_graph, strategy=strategy)
    session.attach(GCN(8, 16, 2, 4))
    told = f"{strategy} cannot change its graph during a run. Use the strategy exchange"
    with pytest.raises(ConfigError, match=told):
        session.change(laconic.GraphChange())


def test_a_graph_is_changed_after_a_model_is_there(small_graph):
    session = laconic.join(small_graph, strategy="exchange")
    with pytest.raises(ConfigError, match="no model in this session yet"):
        session.change(laconic.GraphChange())
