"""What a device reaches in the two things that bound a kernel: copying memory and multiplying matrices."""

from dataclasses import dataclass

import torch

from mhlib.experiments import in_turn
from mhlib.kernels.launch import Counts

__all__ = ["Rates", "measure"]


@dataclass(frozen=True)
class Rates:
    """Measured rates, by which kernels are judged; makers' figures are not reached by anything.

    Attributes:
        copy: bytes per second, read and written, of a copy far larger than the caches.
        matmul: FLOP per second of one large product of matrices.
    """

    copy: float
    matmul: float

    def shares(self, counts: Counts, seconds: float) -> tuple[float, float]:
        """Percent of the copy's bandwidth and of the product's rate."""
        return 100 * counts.bytes / seconds / self.copy, 100 * counts.matmul_flops / seconds / self.matmul


def measure(device: str, dtype: torch.dtype, *, numbers: int, side: int, repeats: int = 9) -> Rates:
    """Both rates of a device.

    Args:
        numbers: how many numbers are copied.
        side: rows and columns of the matrices.
    """
    source = torch.randn(numbers, device=device, dtype=dtype)
    target = torch.empty_like(source)
    a, b = torch.randn(2, side, side, device=device, dtype=dtype)
    times = in_turn(lambda: target.copy_(source), lambda: a @ b, repeats=repeats, least=0.02).median(0).values.tolist()
    return Rates(2 * source.nbytes / times[0], 2 * side**3 / times[1])
