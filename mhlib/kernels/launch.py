"""Launch configurations: a static table per kernel, by device class and sizes, and the launch itself."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from mhlib.kernels.targets import INTERPRETER, TARGETS

__all__ = ["Counts", "Launch", "Table"]

ANY = "any"  #: rows for every device class that has none of its own


class Launch(NamedTuple):
    """Block sizes under the names of the kernel's parameters, warps, pipeline stages."""

    blocks: Mapping[str, int]
    warps: int = 4
    stages: int = 2

    def options(self) -> dict[str, int]:
        """What the launch passes beyond the kernel's arguments."""
        return {**self.blocks, "num_warps": self.warps, "num_stages": self.stages}


class Counts(NamedTuple):
    """What an operation cannot do without, however it is implemented."""

    matmul_flops: int
    other_ops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: matrix-product FLOPs per byte."""
        return self.matmul_flops / self.bytes


class Table:
    """Rows ``(device class, *sizes): Launch``.

    A request gets the smallest row of its device class whose sizes are all at least its own. A class without rows takes those of
    ``"any"``, which must fit the smallest device. Sizes are whatever the kernel names in ``sizes``, such as bits and width.

        Table("forward", ("bits", "width"), {("sm80", 16, 64): Launch(dict(BLOCK_M=128, BLOCK_N=64), 4, 3), ...})
    """

    def __init__(self, name: str, sizes: tuple[str, ...], rows: Mapping[tuple, Launch]):
        self.name, self.sizes, self.rows = name, sizes, dict(rows)
        self._forced: Launch | None = None
        for key in rows:
            if key[0] not in (*TARGETS, INTERPRETER, ANY) or len(key) != 1 + len(sizes):
                raise ValueError(f"table {name}: a row is keyed by (device class, {', '.join(sizes)}), got {key}")

    def pick(self, device_class: str, *sizes: int) -> Launch:
        """The launch of a request; a ValueError says what the table covers."""
        if self._forced is not None:
            return self._forced
        fits = [key for key in self._keys(device_class) if all(row >= size for row, size in zip(key[1:], sizes, strict=True))]
        if not fits:
            asked = ", ".join(f"{name}={size}" for name, size in zip(self.sizes, sizes))
            raise ValueError(f"table {self.name} has no row for {asked} on {device_class}; it has {self._keys(device_class)}")
        return self.rows[min(fits)]

    def each(self) -> Iterator[tuple[str, tuple[int, ...], Launch]]:
        """(device class, sizes, launch) for every device class that is compiled for: what the tests go through."""
        for target in TARGETS:
            for key in self._keys(target):
                yield target, key[1:], self.rows[key]

    def _keys(self, device_class: str) -> list[tuple]:
        own = [key for key in self.rows if key[0] == device_class]
        return own or [key for key in self.rows if key[0] == ANY]

    @contextlib.contextmanager
    def force(self, launch: Launch) -> Iterator[None]:
        """Every request gets this launch: for tuning, and for tests that want small blocks."""
        self._forced = launch
        try:
            yield
        finally:
            self._forced = None


def launch(kernel: Any, grid: tuple[int, ...], arguments: Mapping[str, Any], chosen: Launch) -> None:
    """Run ``kernel`` over ``grid`` on the device and the current stream of its tensors; an empty grid runs nothing."""
    if 0 in grid:
        return
    device = next(value.device for value in arguments.values() if isinstance(value, torch.Tensor))
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        kernel[grid](**arguments, **chosen.options())
