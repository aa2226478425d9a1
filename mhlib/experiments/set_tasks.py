"""Three tasks about real sets, small enough to train every pool on: voices, digits as patches, bags of digits."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from mhlib import data

__all__ = ["SetTask", "set_tasks"]


class Part(NamedTuple):
    """Sets of tokens, which tokens are real (None = all), and a label for each set."""

    x: Float[Tensor, "sets tokens features"]
    key_mask: Bool[Tensor, "sets tokens"] | None
    labels: Int[Tensor, " sets"]


class SetTask(NamedTuple):
    """One task.

    Attributes:
        train, test: sets to learn from and sets to measure on.
        classes: number of labels.
        places: number of places if a token's place says something, else 0.
    """

    train: Part
    test: Part
    classes: int
    places: int


def set_tasks() -> dict[str, SetTask]:
    """The tasks by name. Features are standardised by what the training sets say.

    voices: utterances of 7 to 29 frames, by one of nine men; every frame carries the voice. digits: 8-by-8 images as 16
    patches of 2 by 2 pixels. bags: about ten digits of MNIST, each shrunk to 7 by 7 pixels and then to 24 principal
    components; positive if one of them is a nine.

    Raises:
        ImportError: a package that carries the data is not installed; the message says which.
    """
    return {"voices": _voices(), "digits": _digits(), "bags": _bags()}


def _standardised(train: Part, test: Part) -> tuple[Part, Part]:
    real = train.x.flatten(0, 1) if train.key_mask is None else train.x[train.key_mask]
    mean, deviation = real.mean(0), real.std(0) + 1e-6
    return tuple(part._replace(x=(part.x - mean) / deviation) for part in (train, test))


def _voices() -> SetTask:
    return SetTask(*_standardised(*(Part(*part) for part in data.japanese_vowels())), 9, 0)


def _digits() -> SetTask:
    d = data.digits()
    patches = lambda images: images.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4).flatten(1, 3)  # noqa: E731
    train, test = Part(patches(d.train_images), None, d.train_labels), Part(patches(d.test_images), None, d.test_labels)
    return SetTask(*_standardised(train, test), 10, 16)


def _bags(components: int = 24) -> SetTask:
    d = data.mnist()
    train, test = (F.avg_pool2d(images, 4).flatten(1) for images in (d.train_images, d.test_images))
    mean = train.mean(0)
    _, sizes, axes = torch.linalg.svd(train - mean, full_matrices=False)
    basis = axes[:components].T * len(train) ** 0.5 / sizes[:components]
    parts = [
        data.digit_bags((images - mean) @ basis, labels, count, seed=seed)
        for images, labels, count, seed in ((train, d.train_labels, 600, 0), (test, d.test_labels, 400, 1))
    ]
    return SetTask(*(Part(bags.x, bags.key_mask, bags.labels.long()) for bags in parts), 2, 0)
