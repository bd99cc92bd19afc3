"""`grappa` on a store: on storage that all ranks see, or with each rank's chunks at that rank alone."""

import shutil

import numpy as np
import pytest
import torch
from tests.equivalence.halo_runs import IN, OUT, make_graph
from tests.equivalence.isolated_runs import check_alike, check_equal, run_grappa, run_isolated, run_single, train
from tests.placing import place
from torch_geometric.nn import GraphSAGE

from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.errors import ConfigError, LaconicError, RankFailedError, StoreError
from laconic.papers.grappa.supply import PeerSupply
from laconic.sharded.chunk_map import ChunkMap
from laconic.store import open_store, write_store

NUM_CHUNKS = 5
MOVING = "variable=2, repartition_every=2, correction=node"


def build():
    return GraphSAGE(IN, 8, 3, OUT, norm="batch_norm", dropout=0.3)


@pytest.fixture
def store(tmp_path):
    graph = make_graph(weighted=True)
    parts = np.random.default_rng(1).integers(0, NUM_CHUNKS, graph.num_nodes)
    write_store(graph, parts, tmp_path / "store", reorder="rcm")
    return open_store(tmp_path / "store")


@pytest.fixture
def own_stores(store, tmp_path):
    """A copy of the store for each of so many ranks, in which the chunks of the others are missing."""

    def own_stores(num_ranks):
        chunk_map = ChunkMap.even([chunk.num_nodes for chunk in store.manifest.chunks], num_ranks)
        copies = []
        for rank in range(num_ranks):
            folder = tmp_path / f"rank_{rank}_of_{num_ranks}"
            shutil.copytree(store.folder, folder)
            for number in set(range(NUM_CHUNKS)) - set(chunk_map.chunks_of(rank)):
                remove_chunk(folder, number)
            copies.append(open_store(folder))
        return copies

    return own_stores


def remove_chunk(folder, number):
    shutil.rmtree(folder / f"chunk_{number:05d}")


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("supply", ["storage", "peers"])
def test_a_store_of_which_all_is_held_is_one_machine(num_ranks, supply, store):
    num_variable = NUM_CHUNKS - -(-NUM_CHUNKS // num_ranks) if num_ranks > 1 else 0
    settings = f"variable={num_variable}, repartition_every=4, supply={supply}"
    ranks = run_grappa(build, store, num_ranks, settings, 12)
    check_alike(ranks)
    if NUM_CHUNKS % num_ranks == 0:
        check_equal(run_single(build, make_graph(weighted=True), 12), ranks)


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
@pytest.mark.parametrize("settings", [MOVING, f"{MOVING}, schedule=affinity", f"{MOVING}, rechunk_every=1"])
def test_ranks_that_see_their_own_chunks_only_learn_the_same_bit_by_bit(num_ranks, settings, store, own_stores):
    shared = run_grappa(build, store, num_ranks, settings, 7)
    apart = run_grappa(build, own_stores(num_ranks), num_ranks, settings, 7)
    for one, other in zip(shared, apart, strict=True):
        assert other.losses == one.losses
        assert all(torch.equal(other.state[name], value) for name, value in one.state.items())
        assert other.coverage == one.coverage
    handed = [[row for rows in rank.counted for row in rows if row.operation == "all_to_all"] for rank in apart]
    assert all({row.phase for row in rows} >= {"repartition"} for rows in handed)
    assert not [row for rank in shared for rows in rank.counted for row in rows if is_hand_over(row)]


def is_hand_over(row):
    return (row.phase, row.operation) == ("repartition", "all_to_all")


def test_historical_neighbours_need_no_chunk_of_another_rank(store, own_stores):
    shared = run_isolated(build, store, 3, "refresh_every=2", 5)
    apart = run_isolated(build, own_stores(3), 3, "refresh_every=2", 5)
    assert [rank.losses for rank in apart] == [rank.losses for rank in shared]


def refusals(stores, settings):
    """What each rank is told when the model is attached, which it is not then."""
    models = [build().double() for _ in stores]

    def run(transport):
        placed = place(f"grappa({settings})", stores[transport.rank], models[transport.rank], transport)
        with pytest.raises(LaconicError) as caught:
            placed.start(seed=0)
        assert "forward" not in models[transport.rank].__dict__
        return caught.value

    return run_ranks(len(stores), run, timeout=20)


def test_a_chunk_that_one_rank_lacks_is_named_to_all_ranks(store, tmp_path):
    shutil.copytree(store.folder, tmp_path / "lacking")
    remove_chunk(tmp_path / "lacking", 0)
    stores = [store, open_store(tmp_path / "lacking"), store]
    for error in refusals(stores, f"{MOVING}, supply=storage"):
        assert isinstance(error, ConfigError)
        assert str(error) == (
            "supply=storage, but not every rank can read every chunk: rank 1 cannot read chunk 0. Put the store where "
            "all ranks see it, or use supply=peers."
        )


def ends(stores, settings, epochs=6):
    """How each rank ends: its error, or None."""
    models = [build().double() for _ in stores]
    told = {}

    def run(transport):
        try:
            train_one(transport, stores[transport.rank], models[transport.rank], settings, epochs)
        except BaseException as error:
            told[transport.rank] = error
            raise

    with pytest.raises(BaseException):  # noqa: B017
        run_ranks(len(stores), run, timeout=20)
    return told


def train_one(transport, store, model, settings, epochs):
    communicator = Communicator(transport, Ledger(transport.rank))
    train(f"grappa({settings})", store, model, communicator, epochs)


def test_a_rank_that_lacks_a_chunk_of_its_own_tells_the_others_why_it_ends(store, tmp_path):
    shutil.copytree(store.folder, tmp_path / "lacking")
    remove_chunk(tmp_path / "lacking", 2)
    told = ends([store, open_store(tmp_path / "lacking"), store], MOVING)
    assert isinstance(told[1], StoreError)
    assert "chunk_00002" in str(told[1])
    for rank in (0, 2):
        assert isinstance(told[rank], RankFailedError)
        assert f"Rank 1 failed: StoreError: {told[1]}" == str(told[rank])


@pytest.mark.parametrize("at_call", [0, 2])
def test_a_hand_over_that_one_rank_cannot_begin_ends_all_with_its_error(store, monkeypatch, at_call):
    begin = PeerSupply.start
    calls = {0: 0, 1: 0, 2: 0}

    def start(self, wanted):
        rank = self._communicator.rank
        calls[rank] += 1
        if rank == 2 and calls[rank] == at_call + 1:
            raise MemoryError("no room for chunks")
        return begin(self, wanted)

    monkeypatch.setattr(PeerSupply, "start", start)
    told = ends([store] * 3, f"{MOVING}, supply=peers")
    assert isinstance(told[2], MemoryError)
    for rank in (0, 1):
        assert str(told[rank]) == "Rank 2 failed: MemoryError: no room for chunks"


def test_a_chunk_that_is_damaged_while_training_goes_on_ends_all_with_its_name(store, tmp_path):
    shutil.copytree(store.folder, tmp_path / "damaged")
    # Rank 2 owns chunks 3 and 4, and gets 0 and 1 first. They can be opened, but not read.
    (tmp_path / "damaged" / "chunk_00000" / "x.npy").unlink()
    told = ends([store, store, open_store(tmp_path / "damaged")], f"{MOVING}, supply=storage")
    assert isinstance(told[2], StoreError)
    for rank in (0, 1):
        assert isinstance(told[rank], RankFailedError)
        assert "chunk_00000/x.npy" in str(told[rank])
