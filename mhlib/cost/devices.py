"""Named devices with their published peaks, and the roofline they draw."""

from dataclasses import dataclass

from mhlib.cost.model import Cost

__all__ = ["DEVICES", "Device", "roofline"]


@dataclass(frozen=True)
class Device:
    """A machine as the roofline model sees it.

    Args:
        flops: peak of dense bfloat16 matrix products, FLOP/s, without sparsity.
        bandwidth: peak of the main memory, bytes/s.
        memory: its size in bytes.
        source: the maker's document that states the figures.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    source: str

    @property
    def ridge(self) -> float:
        """The arithmetic intensity (FLOP/byte) above which the device computes and below which it waits for memory."""
        return self.flops / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """FLOP/s that the roofline allows at an arithmetic intensity."""
        return min(self.flops, intensity * self.bandwidth)

    def seconds(self, cost: Cost) -> float:
        """The roofline's lower bound for a forward pass: the slower of arithmetic and traffic.

        Arithmetic is timed at the peak of 16-bit products. Wider types are slower still, so that the bound holds for them
        without being tight; it does not hold for 8-bit types, which may be faster.
        """
        return max(cost.matmul_flops / self.flops, cost.bytes / self.bandwidth)

    def bound(self, cost: Cost) -> str:
        """What limits it: "compute" or "memory"."""
        return "compute" if cost.intensity >= self.ridge else "memory"


DEVICES = {
    d.name: d
    for d in (
        Device("V100", 125e12, 0.9e12, 32e9, "NVIDIA V100 data sheet (SXM2, fp16)"),
        Device("T4", 65e12, 0.32e12, 16e9, "NVIDIA T4 data sheet (fp16)"),
        Device("A100", 312e12, 2.039e12, 80e9, "NVIDIA A100 data sheet (SXM, 80 GB)"),
        Device("H100", 989e12, 3.35e12, 80e9, "NVIDIA H100 data sheet (SXM)"),
        Device("H200", 989e12, 4.8e12, 141e9, "NVIDIA H200 data sheet (SXM)"),
        Device("B200", 2250e12, 8.0e12, 180e9, "NVIDIA DGX B200 data sheet, per GPU"),
        Device("MI300X", 1307e12, 5.3e12, 192e9, "AMD Instinct MI300X data sheet"),
        Device("TPU v5e", 197e12, 0.819e12, 16e9, "Google Cloud TPU v5e system architecture"),
    )
}


def roofline(device: str | Device) -> Device:
    """The device of that name; a ValueError lists the known ones."""
    if isinstance(device, Device):
        return device
    if device not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(DEVICES)} or a mhlib.cost.Device, got {device!r}")
    return DEVICES[device]
