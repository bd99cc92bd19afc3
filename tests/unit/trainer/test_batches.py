import itertools
import threading

import pytest
import torch

from laconic.graph import Shard
from laconic.trainer.batches import MiniBatches, WholeGraph


def node_ids(batches, epoch, start_step=0):
    return [batch.shard.node_ids[: batch.num_rows].tolist() for batch in batches.of_epoch(epoch, None, start_step)]


@pytest.fixture
def batches(small_graph):
    return MiniBatches(small_graph, batch_size=8, fanouts=(3, 3), seed=5)


def test_the_whole_graph_is_one_step_over_all_training_rows(small_graph):
    shard = Shard.whole(small_graph)
    whole = WholeGraph(len(shard.train_rows))
    (batch,) = whole.of_epoch(1, shard)
    assert whole.num_steps == 1
    assert batch.shard is shard
    assert not batch.is_drawn
    assert batch.num_rows == int(small_graph.train_mask.sum())


def test_an_epoch_has_every_training_node_once(batches, small_graph):
    drawn = node_ids(batches, 1)
    assert [len(ids) for ids in drawn] == [8, 8, 8, 6]
    assert batches.num_steps == 4
    assert sorted(itertools.chain(*drawn)) == small_graph.train_mask.nonzero().flatten().tolist()


def test_the_order_is_new_in_each_epoch_and_the_same_each_time(batches):
    assert node_ids(batches, 1) == node_ids(batches, 1)
    assert node_ids(batches, 1) != node_ids(batches, 2)


def test_an_epoch_can_be_taken_up_at_any_step(batches):
    for step in range(5):
        assert node_ids(batches, 3, step) == node_ids(batches, 3)[step:]


def test_labels_and_features_are_those_of_the_nodes(batches, small_graph):
    for batch in batches.of_epoch(1, None):
        ids = batch.shard.node_ids
        assert batch.is_drawn
        assert batch.shard.train_rows.tolist() == list(range(batch.num_rows))
        assert torch.equal(batch.shard.y, small_graph.y[ids])
        assert torch.equal(batch.shard.x, small_graph.x[ids])


def test_an_epoch_may_be_left_in_the_middle(batches):
    epoch = batches.of_epoch(1, None)
    first = next(epoch).shard.node_ids
    epoch.close()
    assert torch.equal(next(batches.of_epoch(1, None)).shard.node_ids, first)


def test_leaving_an_epoch_ends_the_threads_that_draw(batches):
    before = threading.active_count()
    epoch = batches.of_epoch(1, None)
    next(epoch)
    assert threading.active_count() > before
    epoch.close()
    assert threading.active_count() == before


def test_waiting_is_counted_per_batch(batches):
    assert all(batch.wait_seconds >= 0 for batch in batches.of_epoch(1, None))
