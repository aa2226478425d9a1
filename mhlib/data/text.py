"""Real English text that is on every machine with Python: the reference manual that ``help()`` shows, as characters."""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

__all__ = ["Text", "python_docs"]

#: Line feed and the printable ASCII characters; the same whatever the text, so that models of different texts compare.
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
_TYPOGRAPHY = str.maketrans("‘’“”–—…", "''\"\"--.")


@dataclass(frozen=True)
class Text:
    """A text as character tokens, split into a training and a validation part that share no paragraph.

    Attributes:
        train, valid: token ids (tokens,), int64.
        characters: the vocabulary; token i stands for ``characters[i]``.
    """

    train: Int[Tensor, " train_tokens"]
    valid: Int[Tensor, " valid_tokens"]
    characters: str = CHARACTERS

    @property
    def vocab_size(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> Int[Tensor, " tokens"]:
        """Characters to token ids; a ValueError names a character that is not in the vocabulary."""
        ids = [self.characters.find(c) for c in text]
        if -1 in ids:
            raise ValueError(f"{text[ids.index(-1)]!r} is not in the vocabulary, which is line feed and printable ASCII")
        return torch.tensor(ids, dtype=torch.long)

    def decode(self, ids: Int[Tensor, " tokens"]) -> str:
        """Token ids to characters."""
        return "".join(self.characters[i] for i in ids.tolist())

    def batches(self, batch: int, length: int, *, seed: int = 0, split: str = "train") -> Iterator[Int[Tensor, "batch length"]]:
        """Endless batches of random excerpts, ``length`` tokens each; the same seed gives the same batches.

        A language model that is to see n tokens and guess the next one of each wants ``length = n + 1``.
        """
        ids = self.part(split)
        if not 1 <= length <= len(ids):
            raise ValueError(f"length must be 1 to {len(ids)}, the tokens of {split}, got {length}")
        generator = torch.Generator().manual_seed(seed)
        while True:
            starts = torch.randint(len(ids) - length + 1, (batch, 1), generator=generator)
            yield ids[starts + torch.arange(length)]

    def part(self, split: str) -> Int[Tensor, " tokens"]:
        """The token ids of "train" or "valid"."""
        if split not in ("train", "valid"):
            raise ValueError(f"split must be 'train' or 'valid', got {split!r}")
        return getattr(self, split)


@functools.cache
def python_docs() -> Text:
    """The prose of Python's reference manual, some 250,000 characters, from the standard library's ``pydoc_data.topics``.

    One paragraph a line. Tables, grammar and code are left out, and so is a paragraph that was there before. Every tenth
    run of 20 paragraphs is for validation. The text differs a little between versions of Python.
    """
    kept = _paragraphs()
    parts = {
        split: "".join(line + "\n" for i, line in enumerate(kept) if (i // 20 % 10 == 9) == (split == "valid"))
        for split in ("train", "valid")
    }
    number = {c: i for i, c in enumerate(CHARACTERS)}
    return Text(**{split: torch.tensor([number[c] for c in part]) for split, part in parts.items()})


def _paragraphs() -> list[str]:
    """Paragraphs of prose, each once. Topics overlap, and a repeated paragraph could be in both parts of the split."""
    from pydoc_data.topics import topics

    found: dict[str, None] = {}
    for name in sorted(topics):
        for block in re.split(r"\n\s*\n", topics[name]):
            line = " ".join(block.translate(_TYPOGRAPHY).split())
            line = re.sub(r"\*+(\w[^*]*)\*+", r"\1", line)  # *emphasis*
            if _is_prose(block, line):
                found[line] = None
    return list(found)


def _is_prose(block: str, line: str) -> bool:
    if re.search(r"\*{4}|={4}|-{4}|::=|>>>|\|  ", block):  # headings, tables, grammar, sessions
        return False
    words = sum(c.isalpha() or c == " " for c in line)
    return len(line) >= 60 and words >= 0.85 * len(line) and line[-1] in ".:;!?\"')" and set(line) <= set(CHARACTERS)
