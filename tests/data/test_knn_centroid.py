"""KNN-centroid: the targets are what they are called, and the features are drawn as the paper's release draws them."""

import pytest
import torch

from mhlib.data import knn_centroid


def test_targets_are_means_of_the_nearest():
    x, y = knn_centroid(20, [1, 5, 11], vectors=12, dim=6)
    assert x.shape == (20, 12, 6) and y.shape == (3, 20, 6)
    for i in range(20):
        distance = torch.cdist(x[i, :1], x[i])[0]
        order = sorted(range(1, 12), key=lambda n: distance[n].item())
        for k, target in zip((1, 5, 11), y[:, i]):
            torch.testing.assert_close(target, x[i, order[:k]].mean(0))
    torch.testing.assert_close(y[2], x[:, 1:].mean(1))  # all neighbours: everything but the first vector


def test_the_same_seed_gives_the_same_sets():
    first, again, other = (knn_centroid(4, [2], seed=seed)[0] for seed in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_features_differ_between_sets_and_have_the_stated_size():
    x, _ = knn_centroid(400, [1])
    assert x.shape == (400, 128, 16)
    x = 4 * x  # undo the division by the root of 16
    spread = x.std(1)
    assert spread.min() < 0.2 and spread.max() > 2.5, "uniform columns may be narrow, normal ones reach a deviation of 3"
    centre = x.mean((1,))
    assert 0.1 < centre.mean() < 0.45, "uniform columns, a third, lie 0.8 above zero on average; the others around it"
    assert 1 < centre.std() < 2.5
    skew = ((x - x.mean(1, keepdim=True)) / spread[:, None]).pow(3).mean(1)
    assert 0.2 < (skew.abs() > 1).float().mean() < 0.45, "about a third of the columns should be exponential"


def test_wrong_arguments(as_a_user):
    with pytest.raises(ValueError, match="1 to 127 for 128 vectors, got \\[128\\]"):
        knn_centroid(2, [128])
