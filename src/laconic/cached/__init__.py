"""Historical neighbours: a rank caches something of the neighbours that other ranks own, and refreshes it now and then.

`neighbour_cache.py` says when it is refreshed, and which rows a step runs on. `historical.py` caches rows: h_u as it
was. `recomputing.py` caches sums: s_u, from which h_u = act(W s_u) is computed with today's weights; `summed_calls.py`
notes which sums a model makes, `khop_halo.py` adds rows of other ranks hop by hop, and `turns.py` bounds how many carry
gradients in a step. `rehearsal.py` predicts the traffic.
"""
