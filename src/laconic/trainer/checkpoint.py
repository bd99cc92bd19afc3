"""Checkpoints of a run: which there are, and how they are written such that a crash at any moment leaves sound ones.

    checkpoints/index.json                    names `last`, to continue from, and `best`, to predict with
    checkpoints/epoch_000050/                 one checkpoint; its files are described in `snapshot.py`
    checkpoints/epoch_000050_step_000012/     one left by an interrupt in the middle of an epoch

A checkpoint is written to a temporary folder, renamed, and only then named in the index, which is replaced in one
piece; folders that the index does not name are deleted after. So the index always names whole checkpoints.
"""

import json
import shutil
from pathlib import Path
from typing import Literal, final

from safetensors import SafetensorError

from laconic.atomic import new_folder, write_json
from laconic.errors import CheckpointError
from laconic.trainer.snapshot import Snapshot, read_snapshot, write_snapshot

Which = Literal["last", "best"]


@final
class Checkpoints:
    """The checkpoints in one folder, which is made when the first one is saved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, *, last: Snapshot | None, best: Snapshot | None) -> None:
        """Saves what is given and deletes what nothing names any more; None leaves that one as it is."""
        try:
            self._save(last, best)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"A checkpoint cannot be written to {self.folder}: {error}. Those written before are whole. Make room, "
                f"or mend the rights of the folder, and continue with --resume."
            ) from error

    def _save(self, last: Snapshot | None, best: Snapshot | None) -> None:
        names = self._index() if self._index_path.exists() else {}
        self.folder.mkdir(exist_ok=True)
        if last is not None and best is not None and last.name == best.name:
            best = last
        if best is not None:
            names["best"] = self._write(best, names)
        if last is not None:
            names["last"] = names["best"] if last is best else self._write(last, names)
        write_json(self._index_path, names)
        for entry in self.folder.iterdir():
            if entry.is_dir() and entry.name not in names.values():
                shutil.rmtree(entry)

    def describe(self) -> str:
        """Returns in a sentence which checkpoints there are."""
        names = self._index() if self._index_path.exists() else {}
        listed = ", ".join(f"{which}: {name}" for which, name in sorted(names.items()))
        return f"The checkpoints in {self.folder} are sound ({listed})." if names else "There is no checkpoint yet."

    def load(self, which: Which) -> Snapshot:
        """Returns the last or the best checkpoint. Raises CheckpointError, naming the file, unless it is sound."""
        if not self._index_path.exists():
            raise CheckpointError(
                f"{self._index_path} does not exist: the run ended before its first checkpoint. Start a new run."
            )
        names = self._index()
        if which not in names:
            choices = ", ".join(names) or "none"
            advice = ""
            if which == "best" and "last" in names:
                advice = " No epoch had a score yet: go on with --resume, or predict with --checkpoint last."
            raise CheckpointError(f"{self._index_path} names no {which} checkpoint; there is: {choices}.{advice}")
        return read_snapshot(self.folder / names[which])

    @property
    def _index_path(self) -> Path:
        return self.folder / "index.json"

    def _index(self) -> dict[str, str]:
        try:
            names = json.loads(self._index_path.read_text(encoding="utf-8"))
            sound = isinstance(names, dict) and all(_is_plain(name) for name in names.values())
        except ValueError:
            sound = False
        if not sound:
            raise CheckpointError(
                f"{self._index_path} should name the last and the best checkpoint; it was altered or cut. "
                f'Write {{"last": "epoch_..."}} with the name of a folder beside it, or start a new run.'
            )
        return {which: name for which, name in names.items() if which in ("last", "best")}

    def _write(self, snapshot: Snapshot, names: dict[str, str]) -> str:
        name = snapshot.name
        if name in names.values() and not snapshot.is_complete:
            return name
        while name in names.values():
            # Never over one that the index names: a crash half-way would leave neither.
            name += "_again"
        shutil.rmtree(self.folder / name, ignore_errors=True)
        with new_folder(self.folder / name) as temporary:
            write_snapshot(snapshot, temporary)
        return name


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and name.startswith("epoch_") and "/" not in name and "\\" not in name
