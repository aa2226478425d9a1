"""The device classes that launch tables are keyed by, and what each allows. Nothing here imports Triton.

The shared-memory limits are ours to hold: the compiler does not enforce them, the driver refuses the launch.
"""

import functools
import importlib.util
import os
from dataclasses import dataclass

import torch

from mhlib.functional.request import Support

__all__ = ["TARGETS", "Target", "available", "device_class"]


@dataclass(frozen=True)
class Target:
    """A class of devices that share launch tables.

    Args:
        backend, arch, warp: what Triton's ``GPUTarget`` takes.
        shared: bytes of shared memory that one block may use.
        devices: some of its members.
        source: the maker's document that states the limit.
    """

    name: str
    backend: str
    arch: int | str
    warp: int
    shared: int
    devices: str
    source: str


KIB = 1024
TARGETS = {
    t.name: t
    for t in (
        Target("sm80", "cuda", 80, 32, 163 * KIB, "A100", "CUDA C++ programming guide, compute capability 8.0"),
        Target("sm89", "cuda", 89, 32, 99 * KIB, "L4, L40, RTX 30, 40 and 50", "the same, 8.6, 8.9 and 12.0"),
        Target("sm90", "cuda", 90, 32, 227 * KIB, "H100, H200", "the same, 9.0"),
        Target("sm100", "cuda", 100, 32, 227 * KIB, "B200", "the same, 10.0"),
        Target("gfx942", "hip", "gfx942", 64, 64 * KIB, "MI300X", "AMD Instinct MI300 instruction set architecture, LDS"),
    )
}

INTERPRETER = "interpreter"  #: the device class of CPU tensors under TRITON_INTERPRET=1
_CLASSES = {(8, 0): "sm80", (8, 7): "sm80", (9, 0): "sm90", (10, 0): "sm100", (10, 3): "sm100"}
LEAST = (8, 0)  # Triton drops older devices


def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter; decided when a kernel's file is imported, so set it before."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def device_class(device: torch.device) -> str:
    """The key of ``device`` in launch tables; an unknown device gets the class with the least shared memory of its maker."""
    if interpreting():
        return INTERPRETER
    if torch.version.hip:
        return "gfx942"
    return _CLASSES.get(_capability(device.index), "sm89")


@functools.cache
def _capability(index: int | None) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


def available(device: torch.device) -> Support:
    """Whether Triton kernels can run on this device, and if not, why."""
    return _available(device.type, device.index)


def _available(kind: str, index: int | None) -> Support:
    if interpreting():
        return _installed()
    if kind != "cuda":
        return Support(False, f"Triton kernels need a GPU, the tensors are on {kind}; with TRITON_INTERPRET=1 they run there, slowly")
    if not torch.version.hip and (found := _capability(index)) < LEAST:
        return Support(False, f"Triton needs compute capability 8.0, this device has {found[0]}.{found[1]}")
    return _installed()


# torch.compile takes the answer as a constant: none of it can change within a process. This is what the decorator
# torch.compiler.assume_constant_result sets, which itself imports the compiler, and with it Triton.
_available._dynamo_marked_constant = True


@functools.cache
def _installed() -> Support:
    found = importlib.util.find_spec("triton") is not None
    return Support(found, "" if found else "triton is not installed")
