"""Kernels compiled ahead of time, for devices that are not there: does it compile, and what does it take of the device?

A :class:`Case` holds one kernel with the arguments of a launch. It is compiled as the launch would: integers that are 1 become
constants, pointers and integers that divide by 16 are marked so (or sm80 would lose its asynchronous copies). This cannot be
done in a process that has TRITON_INTERPRET=1.
"""

import functools
import importlib
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from mhlib.kernels.launch import Launch
from mhlib.kernels.targets import TARGETS, Target

__all__ = ["Case", "Resources", "compile_case", "kernel_modules", "resource_table"]

_TYPES = {
    torch.bool: "i1", torch.uint8: "u8", torch.int8: "i8", torch.int32: "i32", torch.int64: "i64",
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A kernel as it would be launched.

    Args:
        label: what it is, in a few words that are unique among the cases of its kernel and device class.
        kernel: the ``@triton.jit`` function.
        target: device class, a key of :data:`~mhlib.kernels.targets.TARGETS`.
        arguments: those of the launch by name; tensors may be on the meta device.
        launch: the row of the table.
        spill_free: whether spilling registers is an error (on the Triton version of the lock file).
    """

    label: str
    kernel: Any
    target: str
    arguments: Mapping[str, Any]
    launch: Launch
    spill_free: bool = False

    def __str__(self) -> str:
        return f"{self.target} {self.label}"


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes: shared memory in bytes, and spills (bytes of stack on NVIDIA, vector registers on AMD)."""

    shared: int
    spills: int

    def row(self, case: Case) -> str:
        """A line of the table."""
        limit = TARGETS[case.target].shared
        blocks = " ".join(f"{name.removeprefix('BLOCK_')}={size}" for name, size in case.launch.blocks.items())
        return (
            f"{case.target:7} {case.label:44} {blocks:22} w{case.launch.warps:<2} s{case.launch.stages} "
            f"{self.shared:7} of {limit:6} {self.spills:6}"
        )


HEADER = f"{'device':7} {'kernel':44} {'blocks':22} {'':6} {'shared memory':>17} {'spills':>6}"


def compile_case(case: Case) -> Resources:
    """Compile for the case's device class.

    Raises:
        RuntimeError: the kernel is an interpreted one.
    """
    compiled = compiled_kernel(case)
    spills = _amd(compiled.asm["amdgcn"]) if TARGETS[case.target].backend == "hip" else _nvidia(compiled.asm["cubin"])
    return Resources(compiled.metadata.shared, spills)


def compiled_kernel(case: Case) -> Any:
    """What Triton makes of the case: its ``asm`` by stage, its ``metadata``."""
    import triton
    from triton.backends.compiler import GPUTarget

    if not isinstance(case.kernel, triton.JITFunction):
        raise RuntimeError("a process with TRITON_INTERPRET=1 cannot compile: unset it and start again")
    target = TARGETS[case.target]
    return triton.compile(
        _source(case),
        target=GPUTarget(target.backend, target.arch, target.warp),
        options={"num_warps": case.launch.warps, "num_stages": case.launch.stages},
    )


def _source(case: Case):
    from triton.compiler import ASTSource

    signature, constants, attributes = {}, {}, {}
    given = {**case.arguments, **case.launch.blocks}
    for i, parameter in enumerate(case.kernel.params):
        value = given.pop(parameter.name) if parameter.name in given else parameter.default
        if isinstance(value, tuple):  # such as the strides of one tensor
            paths = [(i, j) for j in range(len(value))]
            kinds = tuple(_type(part, parameter, path, constants, attributes) for path, part in zip(paths, value))
            signature[parameter.name] = kinds
        else:
            signature[parameter.name] = _type(value, parameter, (i,), constants, attributes)
    if given:
        raise ValueError(f"{case.label}: the kernel {case.kernel.__name__} has no parameter {', '.join(given)}")
    return ASTSource(fn=case.kernel, signature=signature, constexprs=constants, attrs=attributes)


def _type(value: Any, parameter: Any, path: tuple[int, ...], constants: dict, attributes: dict) -> str:
    """Triton's name for the type of an argument; notes constants and what divides by 16, by the rules of a launch."""
    special = not parameter.do_not_specialize
    if parameter.is_constexpr or value is None or isinstance(value, bool) or (special and isinstance(value, int) and value == 1):
        constants[path] = value
        return "constexpr"
    is_tensor = isinstance(value, torch.Tensor)
    if special and (is_tensor or isinstance(value, int) and value % 16 == 0):
        attributes[path] = [["tt.divisibility", 16]]
    if is_tensor:
        return "*" + _TYPES[value.dtype]
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32"


def _amd(assembly: str) -> int:
    return int(re.search(r"\.vgpr_spill_count:\s+(\d+)", assembly)[1])  # scalar registers spill into vector ones, cheaply


def _nvidia(cubin: bytes) -> int:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        run = subprocess.run([_cuobjdump(), "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    # One function per cubin. A stack means spilled registers, or arrays that found no place in them; REG does not tell.
    return int(re.search(r"STACK:(\d+)", run.stdout)[1])


@functools.cache
def _cuobjdump() -> str:
    import triton

    return str(Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump")


def kernel_modules(names: Iterable[str] = ()) -> list[ModuleType]:
    """The files of ``mhlib.kernels`` that define ``cases()``, all or those named."""
    here = Path(__file__).parent
    found = [f.stem for f in sorted(here.glob("*.py")) if re.search(r"^def cases\(", f.read_text(encoding="utf-8"), re.MULTILINE)]
    if unknown := set(names) - set(found):
        raise ValueError(f"kernels are {', '.join(found)}; got {', '.join(sorted(unknown))}")
    return [importlib.import_module(f"mhlib.kernels.{name}") for name in (names or found)]


def resource_table(names: Iterable[str] = (), targets: Iterable[str | Target] = ()) -> Iterable[str]:
    """The lines of a table of resources, one after the other as they are compiled."""
    wanted = {t.name if isinstance(t, Target) else t for t in targets}
    yield HEADER
    for module in kernel_modules(names):
        for case in module.cases():
            if not wanted or case.target in wanted:
                yield compile_case(case).row(case)
