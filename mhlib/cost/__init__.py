"""What a mechanism costs: parameters, FLOPs, bytes, arithmetic intensity, and the roofline of named devices."""

from mhlib._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
