"""Which implementation a pooling function takes: its formula, or our Triton kernel. Nothing here imports Triton."""

import torch
from torch import Tensor

from mhlib.kernels.targets import available

BACKENDS = ("auto", "reference", "triton")
#: Devices on which "auto" means the kernel; the interpreter, on CPU tensors, is for tests and has to be asked for.
AUTO_DEVICES = ("cuda",)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def takes_kernel(backend: str, x: Tensor) -> bool:
    """Whether a call with ``x`` goes to the kernel: "triton" always does, "reference" never, "auto" where kernels run fast.

    Raises:
        ValueError: no such backend.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend != "auto":
        return backend == "triton"
    return x.device.type in AUTO_DEVICES and x.dtype in _DTYPES and bool(available(x.device))
