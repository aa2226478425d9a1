"""The catalogue: 285 papers about multi-head attention and pooling, and how far each one works here."""

from mhlib._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
