"""Training in isolation: partitions train alone on what they hold, and exchange gradients only.

The idea is Grappa's (arXiv 2602.01872).
`grounds.py` has the two things that a rank may train on: its own rows with remembered neighbours (`remembering.py`), or
a view (`view.py`) of the chunks that it holds (`held.py`). Which those are when, `sweep.py` says; how they come here,
`supply.py` and `sweeper.py`. `coverage.py` is how much of a node's neighbourhood is among them; `factors.py` and
`correction.py`, what each training node's loss is multiplied by for it. `rehearsal.py` predicts the traffic of it all.
"""
