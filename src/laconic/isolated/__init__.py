"""Training in isolation: partitions train alone on what they hold, and exchange gradients only.

The idea is Grappa's (arXiv 2602.01872).
`sweep.py` says which chunks a rank holds when; `coverage.py`, how much of a node's neighbourhood is among them;
`factors.py`, what each training node's loss is multiplied by for it. Arrays only: no ranks, no files.
"""
