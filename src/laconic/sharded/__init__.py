"""Rows and edges of one graph placed on ranks: exact or coded exchange, on one axis or on a grid."""
