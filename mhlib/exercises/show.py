"""Values as short text: numbers in full when they are few, else their shape and a glimpse."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhlib.exercises.declare import Stream

#: More numbers than this are not read by anybody.
FEW = 36


def show(value: Any) -> str:
    """A value as a reader of a failure report wants to see it."""
    if isinstance(value, Tensor):
        return _tensor(value.detach())
    if isinstance(value, np.ndarray):
        return f"numpy {_tensor(torch.as_tensor(value))}" if value.dtype != object else repr(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Stream):
        return f"an iterator over {len(value)} items\n" + "\n".join(f"{i}: {show(item)}" for i, item in enumerate(value))
    if isinstance(value, (tuple, list)):
        return "\n".join(f"{name}: {show(item)}" for name, item in zip(names(value), value)) if value else repr(value)
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + " ..."


def names(value: tuple | list) -> tuple[str, ...]:
    """What the parts of an output are called."""
    return getattr(value, "_fields", None) or tuple(f"[{i}]" for i in range(len(value)))


def _tensor(tensor: Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    if tensor.ndim == 0:
        return f"{_number(tensor)} ({kind})"
    head = f"{kind} {tuple(tensor.shape)}"
    if tensor.numel() == 0:
        return head
    values = tensor.cpu().double().numpy() if tensor.is_floating_point() else tensor.cpu().numpy()
    text = np.array2string(values, precision=4, threshold=FEW, edgeitems=2, max_line_width=88, suppress_small=True)
    return f"{head}\n{text}".replace("\n\n", "\n")


def _number(tensor: Tensor) -> str:
    number = tensor.item()
    return f"{number:.6g}" if isinstance(number, float) else str(number)
