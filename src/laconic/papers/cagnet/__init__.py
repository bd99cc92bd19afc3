"""CAGNET's own layouts (arXiv 2005.03300), kept for comparison: `1.5d_replicated` and `2d_summa`."""
