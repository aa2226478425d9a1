"""Two photographs in colour, a temple and a flower, from scikit-learn's own files."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["Photographs", "photographs"]


class Photographs(NamedTuple):
    """Two photographs with red, green and blue from 0 to 1."""

    temple: Float[Tensor, "3 427 640"]
    flower: Float[Tensor, "3 427 640"]


def photographs() -> Photographs:
    """A Chinese temple by a lake, and a flower.

    Raises:
        ImportError: scikit-learn, which carries the files, or Pillow, which reads them, is not installed; the message says how
            to install them.

    Source: "china.jpg" by danielbuechele and "flower.jpg" by vultilion, both on Flickr under the licence CC BY 2.0.
    """
    try:
        import PIL  # noqa: F401  (scikit-learn reads the files with it)
        from sklearn.datasets import load_sample_images
    except ImportError as error:
        raise ImportError(
            'data.photographs() reads them from scikit-learn: pip install scikit-learn pillow, or "mhlib[data]"'
        ) from error
    found = load_sample_images().images
    return Photographs(*(torch.tensor(image, dtype=torch.float32).permute(2, 0, 1) / 255 for image in found))
