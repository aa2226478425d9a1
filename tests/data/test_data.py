"""The data sets: sizes, splits, no network."""

import socket
import sys

import pytest
import torch

from mhlib import data
from mhlib.data.text import CHARACTERS, Text


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a data set opened a socket")

    monkeypatch.setattr(socket, "socket", refuse)


def test_python_docs_is_prose_of_some_size(no_network):
    text = data.python_docs.__wrapped__()  # not the cached one
    assert 150_000 < len(text.train) < 500_000 and 0.05 < len(text.valid) / len(text.train) < 0.2
    assert text.train.dtype == torch.int64 and text.vocab_size == 96
    words = text.decode(text.train)
    for word in (" the ", "iterator", "If the "):
        assert word in words
    letters = sum(c.isalpha() or c in " \n" for c in words)
    assert letters > 0.9 * len(words)


def test_no_paragraph_is_in_both_parts_or_twice():
    text = data.python_docs()
    train, valid = (text.decode(part).splitlines() for part in (text.train, text.valid))
    assert len(set(train)) == len(train) and len(set(valid)) == len(valid)
    assert not set(train) & set(valid)
    assert all(60 <= len(line) for line in train + valid)


def test_encode_is_the_inverse_of_decode():
    text = data.python_docs()
    assert text.decode(text.encode(CHARACTERS)) == CHARACTERS
    with pytest.raises(ValueError, match="'é' is not in the vocabulary"):
        text.encode("café")


def test_batches_are_excerpts_and_repeat_with_their_seed():
    text = Text(train=torch.arange(50), valid=torch.arange(50, 60))
    batches = text.batches(3, 8, seed=1)
    first, second = next(batches), next(batches)
    assert first.shape == (3, 8) and (first.diff(dim=1) == 1).all()
    assert not torch.equal(first, second)
    assert torch.equal(next(text.batches(3, 8, seed=1)), first)
    assert not torch.equal(next(text.batches(3, 8, seed=2)), first)
    assert next(text.batches(200, 10, split="valid")).unique().tolist() == list(range(50, 60))


def test_every_token_of_the_text_can_be_drawn():
    text = Text(train=torch.arange(9), valid=torch.arange(9))
    assert next(text.batches(500, 3)).unique().tolist() == list(range(9))


def test_bad_batches_are_refused():
    text = Text(train=torch.arange(50), valid=torch.arange(9))
    with pytest.raises(ValueError, match="length must be 1 to 50, the tokens of train, got 51"):
        next(text.batches(3, 51))
    with pytest.raises(ValueError, match="'train' or 'valid', got 'test'"):
        next(text.batches(3, 5, split="test"))


def test_digits_are_split_without_overlap(no_network):
    found = data.digits()
    assert found.train_images.shape[1:] == (1, 8, 8) and found.train_images.dtype == torch.float32
    assert len(found.train_labels) + len(found.test_labels) == 1797 and len(found.test_labels) == 359
    assert found.train_images.min() == 0 and found.train_images.max() == 1
    assert set(found.train_labels.tolist()) == set(found.test_labels.tolist()) == set(range(10))
    again = data.digits()
    assert torch.equal(again.test_images, found.test_images)
    assert not torch.equal(data.digits(seed=1).test_images, found.test_images)
    rows = torch.cat([found.train_images, found.test_images]).flatten(1).sort(0).values
    import sklearn.datasets

    want = torch.tensor(sklearn.datasets.load_digits().data, dtype=torch.float32).sort(0).values / 16
    assert torch.equal(rows, want), "every image is there once"
    with pytest.raises(ValueError, match="between 0 and 1, got 1.5"):
        data.digits(test=1.5)


def test_digits_without_scikit_learn_name_the_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        data.digits()


def test_photographs_are_colours_from_0_to_1(no_network):
    found = data.photographs()
    for photo in found:
        assert photo.shape == (3, 427, 640) and photo.dtype == torch.float32
        assert 0 <= photo.min() < 0.05 and 0.95 < photo.max() <= 1
    red, green, blue = found.temple[:, :40].mean((1, 2))
    assert red < green < blue, "the sky is blue"


@pytest.mark.parametrize("absent", ["sklearn.datasets", "PIL"])
def test_photographs_name_the_pip_line(monkeypatch, absent):
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(ImportError, match="pip install scikit-learn pillow"):
        data.photographs()
