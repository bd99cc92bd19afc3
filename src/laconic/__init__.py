"""Laconic trains graph neural networks on graphs too large for one machine, saying little between them."""

__version__ = "0.1.0"
