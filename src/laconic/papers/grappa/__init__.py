"""Grappa (arXiv 2602.01872): partitions train in isolation on the chunks that they hold, and exchange gradients only.

`worker.py` trains on a view (`view.py`) of the chunks that it holds (`held.py`). Which those
are when, `sweep.py` says; how they come here, `supply.py` and `sweeper.py`. `coverage.py` is how much of a node's
neighbourhood is among them; `factors.py` and `correction.py`, what each training node's loss is multiplied by for it.
`ddp_hook.py` is the correction alone, for torch's DistributedDataParallel. `rehearsal.py` predicts the traffic.
"""
