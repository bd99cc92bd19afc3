"""Exact training on many ranks: each owns rows and gets the halo rows it lacks from their owners, layer by layer."""
