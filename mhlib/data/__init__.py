"""The small data sets that chapters train on; nothing is downloaded."""

from mhlib._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
