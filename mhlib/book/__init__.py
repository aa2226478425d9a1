"""What chapters call: `claim`, `source`, `recorded`, `figure`, `style`."""

from mhlib._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
