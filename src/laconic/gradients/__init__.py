"""Losses and gradients of all ranks: added up, checked to be shared, and the same first weights."""
