"""Which rank has which rows and edges in a layout, as the core or as the paper has it."""

from laconic.comm.grid import Layout, ReplicatedRows, Summa
from laconic.papers.cagnet.replicated import ReplicatedMap
from laconic.papers.cagnet.tiles import TileMap
from laconic.sharded.block import BlockMap
from laconic.sharded.chunk_map import ChunkMap


def block_map_of(layout: Layout, num_ranks: int, chunks: ChunkMap) -> BlockMap:
    """Returns the map of a layout; ConfigError where it does not fit the number of ranks."""
    grid = layout.of(num_ranks)
    if isinstance(layout, Summa):
        return TileMap(grid, chunks, layout.symmetric)
    return ReplicatedMap(grid, chunks) if isinstance(layout, ReplicatedRows) else BlockMap(grid, chunks)
