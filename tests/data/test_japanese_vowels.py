"""Japanese vowels: counts and lengths as the data set states them, read without importing the package that carries it."""

import importlib.util
import subprocess
import sys

import pytest
import torch

from mhlib import data


def test_counts_are_those_of_the_data_set():
    train, test = data.japanese_vowels()
    assert torch.equal(train.speakers.bincount(), torch.full((9,), 30))
    assert test.speakers.bincount().tolist() == [31, 35, 88, 44, 29, 24, 40, 50, 29]
    for part, utterances in ((train, 270), (test, 370)):
        lengths = part.key_mask.sum(1)
        assert part.x.shape == (utterances, lengths.max(), 12) and part.x.dtype == torch.float32
        assert 7 <= lengths.min() and lengths.max() <= 29
        assert (part.x[~part.key_mask] == 0).all() and (part.x[part.key_mask] != 0).any(-1).all()
        assert not part.key_mask.int().diff(dim=1).gt(0).any(), "padding stands at the end"


def test_the_first_frame_is_the_files():
    train, _ = data.japanese_vowels()
    torch.testing.assert_close(train.x[0, :3, 0], torch.tensor([1.860936, 1.891651, 1.939205]))
    torch.testing.assert_close(train.x[0, 0, 1], torch.tensor(-0.207383))


def test_nothing_is_imported_for_it():
    code = (
        "import socket, sys, torch\nsocket.socket = None\nfrom mhlib import data\ndata.japanese_vowels()\n"
        "assert not {'aeon', 'sktime', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_files_the_pip_line_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install --no-deps aeon"):
        data.japanese_vowels()
