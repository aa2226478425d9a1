"""The reference semantics as functions: attention, normalizers, positions, partial attention."""

from mhlib._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
