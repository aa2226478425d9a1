"""Japanese vowels: nine men say /ae/, 640 utterances as short series of 12 cepstrum coefficients, from the files of aeon."""

import importlib.util
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

__all__ = ["Utterances", "japanese_vowels"]


class Utterances(NamedTuple):
    """Utterances of different lengths, padded at the end with zeros, and who spoke.

    Attributes:
        x: 12 linear prediction cepstrum coefficients per frame.
        key_mask: True = a real frame.
        speakers: 0 to 8.
    """

    x: Float[Tensor, "utterances frames 12"]
    key_mask: Bool[Tensor, "utterances frames"]
    speakers: Int[Tensor, " utterances"]


def japanese_vowels() -> tuple[Utterances, Utterances]:
    """The 270 utterances for training (30 of each speaker) and the 370 for testing, in the data set's own split; 7 to 29 frames.

    Raises:
        ImportError: neither aeon nor sktime, which carry the files, is installed; the message says how to install one. They are
            not imported, so what they themselves need may be missing.

    Source: Kudo, Toyama and Shimbo, "Multidimensional curve classification using passing-through regions", 1999.
    """
    folder = _folder()
    return tuple(_read(folder / f"JapaneseVowels_{part}.ts") for part in ("TRAIN", "TEST"))


def _folder() -> Path:
    for package in ("aeon", "sktime"):
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec is not None else ():
            folder = Path(root) / "datasets" / "data" / "JapaneseVowels"
            if folder.is_dir():
                return folder
    raise ImportError("data.japanese_vowels() reads files that aeon carries: pip install --no-deps aeon", name="aeon")


def _read(file: Path) -> Utterances:
    """The ts format: after @data a line per series, its channels apart by colons, its class last."""
    lines = iter(file.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.strip().lower() == "@data":
            break
    series, speakers = [], []
    for line in filter(str.strip, lines):
        *channels, label = line.split(":")
        series.append(torch.tensor([[float(value) for value in channel.split(",")] for channel in channels]).T)
        speakers.append(int(label) - 1)
    lengths = torch.tensor([len(one) for one in series])
    x = pad_sequence(series, batch_first=True)
    return Utterances(x, torch.arange(x.shape[1]) < lengths[:, None], torch.tensor(speakers))
