"""Writes a partitioned graph as a store: whole or not at all.

Everything goes to a hidden folder beside the target, is flushed to disk, and is renamed at the end. Whatever goes wrong
before that, an interrupt included, the hidden folder is removed.

    write_store(graph, parts, Path("store/arxiv"), provenance={"source": "ogbn-arxiv"})
"""

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from laconic import __version__
from laconic.atomic import find_obstacle, sync
from laconic.errors import StoreError
from laconic.graph import Graph
from laconic.graph.stats import PartitionStats
from laconic.store._chunk_arrays import ChunkArrays
from laconic.store._file import sync_tree, write_array
from laconic.store.layout import (
    MANIFEST_NAME,
    PLAIN_FORMAT,
    TEXT_FORMAT,
    ChunkEntry,
    FeatureDtype,
    Manifest,
    chunk_folder,
    dtype_name,
)
from laconic.store.reorder import Reorder

Progress = Callable[[int, int], None]

_CHUNK_NAME = re.compile(r"chunk_[0-9]+")


def write_store(
    graph: Graph,
    parts: NDArray[np.integer],
    folder: str | Path,
    *,
    num_parts: int | None = None,
    features: FeatureDtype | None = None,
    reorder: Reorder = "none",
    provenance: Mapping[str, str | int | float | None] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Writes `graph` to `folder`, one chunk per part, and returns the manifest.

    Args:
        parts: the part of each node, from 0.
        num_parts: how many parts there are; one more than the highest of `parts` when not given.
        features: type of the features on disk; None keeps the graph's.
        reorder: order of the nodes within their chunk.
        provenance: where the graph and its parts came from, kept in the manifest.
        overwrite: replace a store that is there already.
        progress: told (chunks written, chunks in all) after each chunk.
    """
    target = Path(folder)
    check_target(target, overwrite=overwrite)
    num_parts = int(parts.max()) + 1 if num_parts is None else num_parts
    arrays = ChunkArrays(graph, parts, num_parts, features, reorder)
    with _new_folder(target, overwrite=overwrite) as temporary:
        chunks = []
        for number in range(num_parts):
            chunks.append(_write_chunk(arrays, number, temporary / chunk_folder(number)))
            if progress is not None:
                progress(number + 1, num_parts)
        manifest = Manifest(
            format_version=TEXT_FORMAT if graph.class_names or graph.id_names is not None else PLAIN_FORMAT,
            name=graph.name,
            num_nodes=graph.num_nodes,
            num_edges=graph.num_edges,
            num_features=graph.num_features,
            num_classes=graph.num_classes,
            is_multilabel=graph.is_multilabel,
            source_dtype=dtype_name(graph.x.dtype),
            features_dtype=features or dtype_name(graph.x.dtype),
            weight_dtype=None if graph.edge_weight is None else dtype_name(graph.edge_weight.dtype),
            reorder=reorder,
            provenance={
                **(provenance or {}),
                "split": graph.split_origin,
                **{f"num_{split}": count for split, count in graph.num_of_split.items()},
                "laconic_version": __version__,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
            },
            partition=PartitionStats.of(graph, parts, num_parts),
            chunks=tuple(chunks),
            class_names=graph.class_names,
        )
        (temporary / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def check_target(folder: str | Path, *, overwrite: bool) -> None:
    """Raises StoreError unless a store may be written to `folder`: call it before long work."""
    target = Path(folder).resolve()
    try:
        if not target.exists():
            obstacle = find_obstacle(target)
            if obstacle:
                raise StoreError(f"{folder}: no folder can be made there: {obstacle}. Choose another place.")
            return
        if not target.is_dir():
            raise StoreError(f"{folder} is a file; a store is a folder. Choose another name.")
        names = {path.name for path in target.iterdir()}
    except OSError as error:
        raise StoreError(f"{folder}: cannot look into this folder ({error.strerror}). Choose another one.") from error
    if not names:
        return
    # The shape of the folder decides, not a sound manifest: a damaged store may be replaced, other files never.
    if MANIFEST_NAME not in names or any(not _CHUNK_NAME.fullmatch(name) for name in names - {MANIFEST_NAME}):
        raise StoreError(f"{folder} holds files that are not a store's, so it is left alone. Choose another folder.")
    if not overwrite:
        raise StoreError(f"{folder} holds a store already. Choose another folder, or replace it with --overwrite.")


def _write_chunk(arrays: ChunkArrays, number: int, folder: Path) -> ChunkEntry:
    folder.mkdir()
    contents = arrays.of_chunk(number)
    files = {name: write_array(folder / f"{name}.npy", array) for name, array in contents.items()}
    return ChunkEntry(
        num_nodes=files["rows"].shape[0],
        num_intra_edges=files["intra_indices"].shape[0],
        num_bridge_edges=files["bridge_src"].shape[0],
        files=files,
    )


@contextmanager
def _new_folder(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """Gives a hidden folder beside `target`; renames it to `target` at the end, or removes it if anything fails."""
    # Resolved, so that a link keeps pointing where it does and "." has a name.
    target, token = target.resolve(), secrets.token_hex(4)
    temporary = target.parent / f".{target.name}.tmp-{token}"
    made = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        yield temporary
        sync_tree(temporary)
        check_target(target, overwrite=overwrite)
        _replace(temporary, target, target.parent / f".{target.name}.old-{token}")
        sync(target.parent)
    except OSError as error:
        raise StoreError(
            f"{target}: cannot write the store ({error.strerror or error}). Nothing was left behind. "
            f"Choose a folder that can be written to and has enough space."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        for parent in made:
            with suppress(OSError):
                # It holds the store now, or something of someone else's; an empty one goes.
                parent.rmdir()


def _replace(temporary: Path, target: Path, old: Path) -> None:
    if not target.exists() or not any(target.iterdir()):
        os.rename(temporary, target)
        return
    os.rename(target, old)
    try:
        os.rename(temporary, target)
    except OSError:
        os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)
