"""Real pretrained models as modules of this library, read from packages of the registry: nothing is downloaded."""

from mhlib._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
