"""Operators on a graph that torch can differentiate: linear ones, maximum, attention, and keyed dropout.

On CPU tensors they run our kernels, on others torch's own sparse operators.
"""
