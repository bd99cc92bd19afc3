"""What a store is on disk: file names, the manifest, and how element types are written. Reads and writes no array.

    store/arxiv/manifest.json          sizes, types, checksums, provenance, statistics; written last
    store/arxiv/chunk_00000/x.npy      one folder per chunk, one .npy file per array (see `Chunk` for their meaning)

The edges that enter a chunk from all others stand in one set of `bridge_*` files, so the number of files grows with the
number of chunks and not with its square.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, cast, final, get_args

import torch

from laconic.errors import ConfigError, StoreError
from laconic.graph.stats import PartitionStats
from laconic.specs import unknown_name
from laconic.store.typed_json import TypedJsonError, decode

# Format 2 is 1 with text: ids (the array id_names of each chunk) or classes (class_names in the manifest). A store
# without any is still written in format 1, which older versions read.
PLAIN_FORMAT = 1
TEXT_FORMAT = 2
_SINCE_TEXT_FORMAT = ("class_names",)
MANIFEST_NAME = "manifest.json"

FeatureDtype = Literal["float16", "bfloat16", "float32", "float64"]
FEATURE_DTYPES: tuple[str, ...] = get_args(FeatureDtype)

REBUILD = "Restore it from a copy, or write the store again with `laconic partition ... --overwrite`."


def chunk_folder(number: int) -> str:
    return f"chunk_{number:05d}"


def check_features_dtype(name: str | None) -> FeatureDtype | None:
    """Returns `name` if features can be stored so; else raises ConfigError with the choices. None keeps them."""
    if name is not None and name not in FEATURE_DTYPES:
        raise ConfigError(unknown_name(name, FEATURE_DTYPES, family="feature type"))
    return cast(FeatureDtype | None, name)


def torch_dtype(name: str) -> torch.dtype:
    """Returns the torch type called `name`, such as "bfloat16"."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@final
@dataclass(frozen=True)
class FileEntry:
    """One array on disk. `dtype` is what the numbers mean: bfloat16, which numpy lacks, is written as uint16."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    sha256: str


@final
@dataclass(frozen=True)
class ChunkEntry:
    """One chunk: its sizes, and its files by array name."""

    num_nodes: int
    num_intra_edges: int
    num_bridge_edges: int
    files: dict[str, FileEntry]


@final
@dataclass(frozen=True)
class Manifest:
    """What `manifest.json` says: all that is known of a store without opening an array.

    Args:
        source_dtype: type of the features in the graph that was written; readers get it back.
        features_dtype: type of the features on disk; narrower ones save space and round.
        reorder: order of the nodes within their chunk.
        provenance: where it came from: source, partitioner, seed, laconic_version, created.
        partition: cut, halo and balance of the chunks.
        class_names: the text of each class or label, by its number, where labels are text.
    """

    format_version: int
    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    is_multilabel: bool
    source_dtype: str
    features_dtype: str
    weight_dtype: str | None
    reorder: str
    provenance: dict[str, str | int | float | None]
    partition: PartitionStats
    chunks: tuple[ChunkEntry, ...]
    class_names: tuple[str, ...] = ()

    @property
    def num_chunks(self) -> int:
        return len(self.chunks)

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(entry.num_bytes for chunk in self.chunks for entry in chunk.files.values())

    @property
    def has_id_names(self) -> bool:
        """Whether the ids of the nodes are text."""
        return "id_names" in self.chunks[0].files

    @property
    def num_of_split(self) -> dict[str, int] | None:
        """Nodes in each split: train, val, test; None for a store that does not tell, written by an older version."""
        told = {split: self.provenance.get(f"num_{split}") for split in ("train", "val", "test")}
        counts = {split: count for split, count in told.items() if isinstance(count, int)}
        return counts if len(counts) == len(told) else None

    @property
    def split_origin(self) -> str:
        """How the masks of the graph came about, as in Graph; empty for a store that does not tell."""
        return str(self.provenance.get("split", ""))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the contents: equal for two stores that hold the same arrays, whenever they were written."""
        sums = [self.name, self.num_classes, [{name: f.sha256 for name, f in c.files.items()} for c in self.chunks]]
        return _hash_json([*sums, self.class_names] if self.class_names else sums)

    def to_json(self) -> str:
        """Returns the text of `manifest.json`, with a checksum of itself."""
        fields = self._written_fields()
        text = json.dumps({"checksum": _hash_json(fields), **fields}, indent=2)
        # A list of numbers, or what is known of one file, stands on a line of its own; texts hold no line breaks.
        return re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda match: re.sub(r"\s*\n\s*", " ", match[0]), text) + "\n"

    def _written_fields(self) -> dict[str, Any]:
        fields = asdict(self)
        if self.format_version == PLAIN_FORMAT:
            for name in _SINCE_TEXT_FORMAT:
                del fields[name]
        return fields

    @staticmethod
    def from_json(text: str, path: str) -> "Manifest":
        """Returns the manifest in `text`; `path` is where it was read, for errors."""
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise StoreError(f"{path} is not whole JSON ({error}): it was cut short or altered. {REBUILD}") from error
        version = fields.get("format_version") if isinstance(fields, dict) else None
        if not isinstance(version, int):
            raise StoreError(f"{path} is not the manifest of a store: it has no format_version. {REBUILD}")
        if version not in (PLAIN_FORMAT, TEXT_FORMAT):
            which = "newer" if version > TEXT_FORMAT else "older"
            raise StoreError(
                f"{path} has format version {version}, {which} than those that this laconic reads ({PLAIN_FORMAT} and "
                f"{TEXT_FORMAT}). Use the laconic that wrote it, or write the store again with `laconic partition`."
            )
        if version == PLAIN_FORMAT:
            fields |= {name: [] for name in _SINCE_TEXT_FORMAT}
        try:
            manifest = decode(Manifest, fields)
        except TypedJsonError as error:
            raise StoreError(f"{path}: {error}. {REBUILD}") from error
        if fields.get("checksum") != _hash_json(manifest._written_fields()):
            raise StoreError(f"{path} has been altered since it was written: its checksum does not fit. {REBUILD}")
        return manifest


def _hash_json(fields: Any) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
