"""What a layer remembers between calls while it decodes: explicit, and it knows its bytes."""

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["Cache", "KVCache"]


class Cache:
    """The base of all caches and recurrent states: ``length`` tokens seen, held in ``tensors``."""

    length: int = 0
    tensors: tuple[Tensor, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of memory that the cache holds."""
        return sum(t.numel() * t.element_size() for t in self.tensors)

    def reset(self) -> None:
        """Forget everything; the memory stays."""
        self.length = 0


class KVCache(Cache):
    """Room for ``max_len`` tokens of each tensor that ``project`` hands out, filled from the front.

    Args:
        shapes: (heads, width) of each tensor, such as ``[(num_kv_heads, head_dim)] * 2`` for keys and values.
    """

    def __init__(self, batch: int, max_len: int, shapes: list[tuple[int, int]], *, dtype: torch.dtype, device: torch.device):
        self.max_len = max_len
        self.tensors = tuple(torch.zeros(batch, heads, max_len, width, dtype=dtype, device=device) for heads, width in shapes)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one sequence takes."""
        return sum(t.shape[1] * t.shape[3] * t.element_size() for t in self.tensors)

    def append(self, kv: tuple[Float[Tensor, "batch _ tokens _"], ...]) -> tuple[Tensor, ...]:
        """Add new tokens and return all tokens so far (views of the cache, not copies)."""
        start, end = self.length, self.length + kv[0].shape[2]
        if end > self.max_len:
            raise ValueError(f"the cache has room for {self.max_len} tokens and holds {start}; {end - start} more do not fit")
        if kv[0].shape[0] != self.tensors[0].shape[0]:
            raise ValueError(f"the cache was made for batch {self.tensors[0].shape[0]}, got batch {kv[0].shape[0]}")
        if torch.is_grad_enabled() and any(t.requires_grad for t in kv):
            raise ValueError("a cache keeps no gradients: decode under torch.no_grad() or torch.inference_mode()")
        for memory, new in zip(self.tensors, kv):
            memory[:, :, start:end] = new
        self.length = end
        return tuple(memory[:, :, :end] for memory in self.tensors)

    def reorder(self, index: Tensor) -> None:
        """Let sequence i go on from sequence ``index[i]``, as beam search asks."""
        for memory in self.tensors:
            memory.copy_(memory[index])
