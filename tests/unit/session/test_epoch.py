"""Loops as they were written before epochs came with their shards: told what to write, before anything is trained."""

import operator

import pytest
from torch import nn
from torch_geometric.nn import GCN, GCNConv, Sequential

import laconic
from laconic.errors import ConfigError

LOOP = r"Write: for epoch, shard in session\.epochs\(100\):"


@pytest.fixture
def session(small_graph):
    return laconic.join(small_graph)


def test_an_epoch_is_its_number_and_the_shard_to_train_on(session):
    session.attach(GCN(8, 6, 2, 4))
    numbers = []
    for epoch, shard in session.epochs(3):
        assert shard is session.shard
        numbers.append(epoch)
    assert numbers == [1, 2, 3]
    (one,) = session.epochs(1)
    assert (one.number, one.shard) == one == (1, session.shard)
    assert one != (2, session.shard)
    assert hash(one) == hash((1, session.shard))


@pytest.mark.parametrize(
    "use",
    [
        *(lambda epoch, do=do: do(epoch, 2) for do in (operator.eq, operator.ne, operator.lt, operator.ge)),
        *(lambda epoch, do=do: do(epoch, 2) for do in (operator.add, operator.mul, operator.mod, operator.floordiv)),
        lambda epoch: 1 - epoch,
        lambda epoch: 1.0 / epoch,
        lambda epoch: f"epoch {epoch}",
        lambda epoch: f"{epoch:3d}",
        lambda epoch: [0.1, 0.2][epoch],
        int,
        float,
    ],
)
def test_a_loop_that_takes_the_pair_for_the_number_is_told_what_to_write(session, use):
    session.attach(GCN(8, 6, 2, 4))
    for epoch in session.epochs(1):
        with pytest.raises(ConfigError, match=LOOP):
            use(epoch)


def in_a_plain_line(session, model):
    model, shard = session.attach(model)
    return model, shard


def in_a_list(session, model):
    [first, second] = session.attach(model)
    return first, second


def after_other_calls(session, model):
    model, shard = [session][0].attach(next(iter([model])))
    return model, shard


LAYERS = [(GCNConv(8, 6), "x, edge_index -> x"), (GCNConv(6, 4), "x, edge_index -> x")]
MODELS = [GCN(8, 6, 2, 4), Sequential("x, edge_index", LAYERS), nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 4))]


@pytest.mark.parametrize("write", [in_a_plain_line, in_a_list, after_other_calls])
@pytest.mark.parametrize("model", MODELS)
def test_a_line_that_takes_a_shard_from_attach_is_told_what_to_write(session, write, model):
    with pytest.raises(ConfigError, match=r"Write: model = session\.attach\(model\).*session\.epochs.*session\.shard"):
        write(session, model)
    assert not hasattr(model, "laconic_scope"), "it was attached all the same"


def test_any_other_line_gets_the_model(session):
    model = GCN(8, 6, 2, 4)
    assert session.attach(model) is model
    same, shard = session.attach(model), session.shard
    assert same is model
    assert shard is session.shard
    (only,) = map(session.attach, [model])
    assert only is model
    with session, session as again:
        assert again.attach(model) is model


def test_there_is_no_shard_before_a_model(session):
    with pytest.raises(ConfigError, match=r"Call session\.attach\(model\) first"):
        session.shard  # noqa: B018
