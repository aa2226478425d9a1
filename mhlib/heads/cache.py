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
        dtype: of the memory, a float, whatever that of the tokens: they are rounded to it on their way in.
    """

    def __init__(self, batch: int, max_len: int, shapes: list[tuple[int, int]], *, dtype: torch.dtype, device: torch.device):
        if batch < 1 or max_len < 1:
            raise ValueError(f"a cache needs room for at least one token, got batch={batch}, max_len={max_len}")
        if not dtype.is_floating_point:
            raise ValueError(f"a cache keeps floats: {dtype} would cut them to whole numbers; use bfloat16 to save memory")
        self.max_len = max_len
        self.tensors = tuple(torch.zeros(batch, heads, max_len, width, dtype=dtype, device=device) for heads, width in shapes)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one sequence takes."""
        return sum(t.shape[1] * t.shape[3] * t.element_size() for t in self.tensors)

    def append(self, kv: tuple[Float[Tensor, "batch _ tokens _"], ...]) -> tuple[Tensor, ...]:
        """Add new tokens and return all tokens so far, in the dtype of the new ones (views of the cache where it is the same)."""
        start, end = self.length, self.length + kv[0].shape[2]
        if end > self.max_len:
            raise ValueError(f"the cache has room for {self.max_len} tokens and holds {start}; {end - start} more do not fit")
        if kv[0].shape[0] != self.tensors[0].shape[0]:
            raise ValueError(f"the cache was made for batch {self.tensors[0].shape[0]}, got batch {kv[0].shape[0]}")
        made, got = ([(t.shape[1], t.shape[3]) for t in tensors] for tensors in (self.tensors, kv))
        if made != got:
            raise ValueError(f"the cache was made for (heads, width) {made}, got {got}; use the layer's own init_cache")
        if torch.is_grad_enabled() and any(t.requires_grad for t in kv):
            raise ValueError("a cache keeps no gradients: decode under torch.no_grad() or torch.inference_mode()")
        for memory, new in zip(self.tensors, kv):
            memory[:, :, start:end] = new
        self.length = end
        return tuple(memory[:, :, :end].to(new.dtype) for memory, new in zip(self.tensors, kv))

    def reorder(self, index: Tensor) -> None:
        """Let sequence i go on from sequence ``index[i]``, as beam search asks."""
        batch = self.tensors[0].shape[0]
        if index.shape != (batch,) or index.is_floating_point() or index.dtype == torch.bool:
            raise ValueError(
                f"index must name one of the cache's {batch} sequences for each of them: ({batch},) whole numbers, "
                f"got {tuple(index.shape)} of {index.dtype}"
            )
        for memory in self.tensors:
            memory.copy_(memory[index])
