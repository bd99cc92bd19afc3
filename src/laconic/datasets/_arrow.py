"""Pyarrow, imported by the first who uses it: no other run waits for it, or has the thread that it starts.

from laconic.datasets import _arrow as pyarrow
"""

from typing import Any


def __getattr__(name: str) -> Any:
    import pyarrow
    import pyarrow.compute
    import pyarrow.csv
    import pyarrow.parquet

    return getattr(pyarrow, name)
