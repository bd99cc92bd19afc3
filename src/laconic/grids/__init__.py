"""Exact training on process grids: each rank owns rows, and a block of the edges; rows are gathered, sums scattered."""
