"""docs/models.md: its examples run, one after the other, as they are written."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_every_example_on_the_page_about_models_runs():
    names: dict[str, object] = {"__name__": __name__}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    with torch.random.fork_rng(devices=[]):
        for block in blocks:
            exec(block, names)
    assert names["plain"] is names["model"]
    assert names["other"].shape == (9, 4)
