"""A partitioned graph on disk: chunks of nodes and edges, memory-mapped, checksummed, written whole or not at all."""

from laconic.store.chunk import Chunk
from laconic.store.layout import Manifest
from laconic.store.memory import chunk_in_memory
from laconic.store.read import Store, is_store, looks_like_store, open_store
from laconic.store.reorder import REORDERS, check_reorder
from laconic.store.write import check_target, write_store

__all__ = [
    "REORDERS",
    "Chunk",
    "Manifest",
    "Store",
    "check_reorder",
    "check_target",
    "chunk_in_memory",
    "is_store",
    "looks_like_store",
    "open_store",
    "write_store",
]
