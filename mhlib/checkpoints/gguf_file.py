"""GGUF files, read by the package ``gguf``: the metadata as plain values, and tensors dequantised to float32."""

from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["GGUF"]


class GGUF:
    """An open GGUF file.

    Args:
        path: the file; a ValueError of ``gguf`` says so if it is none.

    Attributes:
        metadata: what the file says about the model, such as ``"llama.block_count": 30``, and its vocabulary.
        names: of its tensors.
    """

    def __init__(self, path: str | Path):
        reader = _reader(path)
        self.metadata: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.names = frozenset(self._tensors)

    def tensor(self, name: str) -> np.ndarray:
        """One tensor in float32, the fastest axis last as in PyTorch; a new array each time."""
        from gguf import dequantize

        stored = self._tensors[name]
        # What is stored in float32 comes back as a view of the file; a model must own its weights.
        return np.array(dequantize(stored.data, stored.tensor_type), np.float32).reshape(tuple(stored.shape[::-1]))


def _reader(path: str | Path):
    from gguf import GGUFReader

    class Reader(GGUFReader):
        """Cuts its ten thousands of strings from a plain array: slices of a memmap take four times as long."""

        @property
        def data(self) -> np.ndarray:
            return self._data

        @data.setter
        def data(self, mapped: np.memmap) -> None:
            self._data = mapped.view(np.ndarray)

    return Reader(path)
