"""Pools: many tokens to one vector, or to a few; and the gates and recipes that belong to them."""

from mhlib._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
