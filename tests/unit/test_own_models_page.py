"""The Python of docs/own_models.md runs as it stands there, block after block."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "own_models.md"


def test_every_block_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names = {"__name__": "__main__"}
    with torch.random.fork_rng():
        for block in blocks:
            exec(compile(block, PAGE, "exec"), names)
    assert len(blocks) == 3
    assert names["predictions"].classes.shape == (300,)
    assert names["hidden"].vectors.shape == (300, 16)
    assert set(names["scores"]) == {"train", "val", "test"}
    assert [path.name for path in tmp_path.glob("runs/*")] == ["sbm-nodes-300-GCN-001"]
