"""CAGNET's own layouts (arXiv 2005.03300), for comparison: `1.5d_replicated`, `2d_summa`."""
