"""The few models and training loops that chapters share: a small language model, `train`, `evaluate`."""

from mhlib._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
