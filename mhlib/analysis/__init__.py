"""Numbers computed about models and costs: what limits decoding, how heads differ, what can be left out."""

from mhlib._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
