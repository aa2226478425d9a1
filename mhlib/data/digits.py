"""Handwritten digits, 8 by 8 pixels: 1,797 of them, from scikit-learn's own files."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Digits", "digits"]


class Digits(NamedTuple):
    """Square images with ink from 0 (none) to 1, and which digit each shows, for training and for testing."""

    train_images: Float[Tensor, "train 1 size size"]
    train_labels: Int[Tensor, " train"]
    test_images: Float[Tensor, "test 1 size size"]
    test_labels: Int[Tensor, " test"]


def digits(*, test: float = 0.2, seed: int = 0) -> Digits:
    """The digits, shuffled and split; the same seed gives the same split.

    Args:
        test: the share that is kept for testing, between 0 and 1.

    Raises:
        ImportError: scikit-learn, which carries the images, is not installed; the message says how to install it.

    Source: Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI repository, 1998.
    """
    if not 0 < test < 1:
        raise ValueError(f"test is the share kept for testing, between 0 and 1, got {test}")
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError('data.digits() reads them from scikit-learn: pip install scikit-learn, or "mhlib[data]"') from error
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(seed))
    images = (torch.tensor(found.images, dtype=torch.float32) / 16).unsqueeze(1)[order]
    labels = torch.tensor(found.target, dtype=torch.long)[order]
    kept = round(len(labels) * (1 - test))
    return Digits(images[:kept], labels[:kept], images[kept:], labels[kept:])
