"""Where the nodes of a change live, and where new ones come to."""

import numpy as np
import torch

from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.graph import GraphChange, NewNodes
from laconic.sharded.node_owners import NodeOwners, Numbers

# Rank 0 has nodes 0 to 9, rank 1 has 10 to 15, rank 2 has 20 to 29.
OWNED = [np.arange(10), np.arange(10, 16), np.arange(20, 30)]


def homes_of(ids, pairs, removed=()):
    change = GraphChange(
        add_edges=torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T,
        add_nodes=NewNodes(torch.tensor(ids), torch.ones(len(ids), 1)),
        remove_nodes=torch.tensor(removed, dtype=torch.int64),
    )

    def on_rank(transport):
        own = OWNED[transport.rank]
        owners = NodeOwners.find(change, Numbers(own), len(own), Communicator(transport, Ledger(transport.rank)))
        return owners.of(np.array(ids)).tolist()

    first, *others = run_ranks(3, on_rank)
    assert all(other == first for other in others)
    return first


def test_a_new_node_comes_to_the_rank_with_most_of_its_neighbours():
    assert homes_of([99], [(99, 20), (21, 99), (99, 0), (10, 99)]) == [2]


def test_neighbours_count_once_whatever_the_number_of_edges():
    assert homes_of([99], [(99, 20), (20, 99), (99, 20), (0, 99), (99, 1)]) == [0]


def test_of_equally_near_ranks_the_one_with_fewest_nodes_gets_it():
    assert homes_of([99], [(99, 0), (99, 10)]) == [1]
    assert homes_of([99], [(99, 0), (99, 20)]) == [0]
    assert homes_of([99], [(99, 0), (99, 20)], removed=[29]) == [2]


def test_nodes_without_neighbours_fill_the_smallest_ranks():
    assert homes_of(list(range(90, 96)), []) == [1, 1, 1, 1, 0, 1]


def test_new_nodes_follow_new_ones_that_are_listed_before_them():
    assert homes_of([99, 98, 97], [(99, 20), (98, 99), (97, 98), (97, 97)]) == [2, 2, 2]
    # Nobody knows yet where 99 will be.
    assert homes_of([98, 99], [(99, 20), (99, 21), (98, 99)]) == [1, 2]


def test_ids_are_found_in_any_order():
    numbers = Numbers(np.array([30, 10, 20]))
    assert numbers.of(np.array([10, 11, 30, 31, 9])).tolist() == [1, -1, 0, -1, -1]
    assert Numbers(np.empty(0, np.int64)).of(np.array([1])).tolist() == [-1]
