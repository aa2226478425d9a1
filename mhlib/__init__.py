"""mhlib: multi-head attention and pooling, each mechanism a small diff against the plain one.

Everything is imported on first use: `mhlib.attention`, and the parts `mhlib.heads`, `mhlib.functional`, `mhlib.masks`, ...
"""

import importlib

from mhlib._lazy import submodules, unknown

__all__ = ["attention"]
__version__ = "0.1.0"


def __getattr__(name: str):
    if name == "attention":
        from mhlib.functional.attention import attention as value
    elif not name.startswith("_") and name in submodules(__file__):
        value = importlib.import_module(f"mhlib.{name}")
    else:
        raise unknown("mhlib", name, ["attention", *submodules(__file__)])
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), "attention", *submodules(__file__)})
