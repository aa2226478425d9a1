"""The largest tensor that a computation makes on its way: what tells a lean solution from one that copies."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """``with Largest() as seen: ...`` notes the largest tensor made: ``seen.numbers``, ``seen.shape``. Views are free."""

    def __init__(self):
        super().__init__()
        self.numbers, self.shape = 0, ()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None) -> Any:
        given = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided and _storage(leaf) not in given:
                numbers = leaf.untyped_storage().nbytes() // leaf.element_size()
                if numbers > self.numbers:
                    self.numbers, self.shape = numbers, tuple(leaf.shape)
        return result


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)
