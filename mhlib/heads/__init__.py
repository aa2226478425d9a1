"""Attention heads: one base of five stages, and every mechanism as a diff against it."""

from mhlib._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
