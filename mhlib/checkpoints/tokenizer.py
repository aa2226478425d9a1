"""Text to token numbers and back: one face for the byte-level BPE of a GGUF file and for a tokenizer.json."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

__all__ = ["Tokenizer"]

_CONTROL = 3  # a token type of GGUF: never made from text by merging, not shown when decoding
_PRE_TOKENIZERS = ("smollm",)


class Tokenizer:
    """A trained tokenizer; it never changes, so copies of a model share it.

    Args:
        backend: a ``tokenizers.Tokenizer``, without truncation and padding.
        pad: the token that fills up shorter texts of a batch.
        eos: the token that ends a text, None if there is none.
    """

    def __init__(self, backend: Any, *, pad: int, eos: int | None = None):
        self.backend, self.pad, self.eos = backend, pad, eos

    @classmethod
    def from_gguf(cls, metadata: dict[str, Any]) -> "Tokenizer":
        """Byte-level BPE from the metadata of a GGUF file: digits one by one, then words with the space before them."""
        from tokenizers import AddedToken, decoders, models, pre_tokenizers
        from tokenizers import Tokenizer as Backend

        about = {name.removeprefix("tokenizer.ggml."): v for name, v in metadata.items() if name.startswith("tokenizer.ggml.")}
        if about["model"] != "gpt2" or about["pre"] not in _PRE_TOKENIZERS:
            raise ValueError(
                f"only byte-level BPE split as {', '.join(_PRE_TOKENIZERS)} is known here, the file has "
                f"model {about['model']!r} and pre-tokenizer {about['pre']!r}"
            )
        tokens, merges = about["tokens"], [tuple(merge.split(" ")) for merge in about["merges"]]
        backend = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        backend.decoder = decoders.ByteLevel()
        control = [token for token, kind in zip(tokens, about["token_type"]) if kind == _CONTROL]
        backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
        return cls(backend, pad=about["padding_token_id"], eos=about["eos_token_id"])

    @classmethod
    def from_json(cls, path: str | Path, *, pad: int) -> "Tokenizer":
        """From a tokenizer.json of the `tokenizers` library."""
        from tokenizers import Tokenizer as Backend

        backend = Backend.from_file(str(path))
        backend.no_truncation()
        backend.no_padding()
        return cls(backend, pad=pad)

    def __len__(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.backend.get_vocab_size()

    def __deepcopy__(self, memo: dict) -> "Tokenizer":
        return self

    def encode(self, text: str) -> list[int]:
        """Text to token numbers; names of special tokens in the text become these tokens.

        Of byte-level BPE, bytes that have no token are left out: in SmolLM2 a few control characters and rare planes.
        """
        return self.backend.encode(text).ids

    def decode(self, ids: Sequence[int] | Tensor, *, special: bool = False) -> str:
        """Token numbers to text, with special tokens written out only if ``special``."""
        return self.backend.decode(_numbers(ids), skip_special_tokens=not special)

    def pieces(self, ids: Sequence[int] | Tensor) -> list[str]:
        """The text of each token alone, as labels for a figure; half a character shows as the replacement sign."""
        return [self.decode([i], special=True) for i in _numbers(ids)]

    def batch(
        self, texts: Sequence[str], *, side: str = "right", max_tokens: int | None = None
    ) -> tuple[Int[Tensor, "batch tokens"], Bool[Tensor, "batch tokens"]]:
        """Texts to token numbers of equal length, and the mask of the real ones (True).

        Args:
            side: where the padding goes; "left" when generation is to go on from the last token.
            max_tokens: longer texts are cut to so many, special tokens included.
        """
        if isinstance(texts, str):
            raise TypeError("batch() takes a list of texts, got a single one: use [text] or encode(text)")
        if side not in ("left", "right"):
            raise ValueError(f"side must be 'left' or 'right', got {side!r}")
        if max_tokens is not None:
            self.backend.enable_truncation(max_tokens)
        try:
            rows = [encoding.ids for encoding in self.backend.encode_batch(list(texts))]
        finally:
            self.backend.no_truncation()
        length = max(map(len, rows), default=0)
        ids = torch.full((len(rows), length), self.pad)
        key_mask = torch.zeros(len(rows), length, dtype=torch.bool)
        for i, row in enumerate(rows):
            place = slice(0, len(row)) if side == "right" else slice(length - len(row), length)
            ids[i, place], key_mask[i, place] = torch.tensor(row, dtype=torch.long), True
        return ids, key_mask


def _numbers(ids: Sequence[int] | Tensor) -> list[int]:
    return ids.tolist() if isinstance(ids, Tensor) else list(ids)
