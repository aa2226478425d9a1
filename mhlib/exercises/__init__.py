"""Checkers for the chapters' exercises: ``check(name, function)`` says whether it is right, and if not, where and why."""

from mhlib._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
