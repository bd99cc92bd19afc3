"""What a graph is, and the sparse operators on it. Knows no files and no other ranks."""

from laconic.graph.adjacency import Adjacency
from laconic.graph.change import GraphChange, NewNodes
from laconic.graph.graph import Graph
from laconic.graph.shard import Shard

__all__ = ["Adjacency", "Graph", "GraphChange", "NewNodes", "Shard"]
