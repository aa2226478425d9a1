"""The attention kernels use what makes a device fast: tensor cores, asynchronous copies, loads of 16 bytes."""

import re

import pytest

from mhlib.kernels.aot import compiled_kernel, kernel_modules

TENSOR_CORES = {"sm80": r"mma\.sync", "sm90": r"wgmma\.mma_async", "sm100": r"tcgen05\.mma"}
CASES = {
    (case.target, case.label): case
    for module in kernel_modules(["flash_attention", "decode_attention", "latent_decode"])
    for case in module.cases()
}


def ptx(target: str, label: str) -> str:
    return compiled_kernel(CASES[target, label]).asm["ptx"]


@pytest.mark.parametrize("target", TENSOR_CORES)
@pytest.mark.parametrize("label", ["flash forward bf16 128/128", "flash backward q bf16 128/128", "flash backward kv bf16 128/128"])
def test_flash_attention_runs_on_tensor_cores(target, label):
    assert re.search(TENSOR_CORES[target], ptx(target, label))


COPY = r"cp\.async\.cg\.shared\.global [^;]*, 0x10,[^;]*;"  # of 16 bytes, by each thread


@pytest.mark.parametrize("target", TENSOR_CORES)
@pytest.mark.parametrize("label", ["flash forward bf16 128/128", "decode bf16 128/128 rows 16"])
def test_keys_arrive_asynchronously(target, label):
    """Without the alignment of pointers and strides the compiler would not dare to."""
    text = ptx(target, label)
    assert re.search(COPY, text) and "ld.global.v4" in text


@pytest.mark.parametrize("target", ["sm80", "sm90"])
def test_the_latent_is_read_once(target):
    """A block of keys is copied once before the loop and once in it, each time as many bytes as the keys alone have."""
    case = CASES[target, "latent decode bf16 rows 32"]
    copies = re.findall(COPY, ptx(target, "latent decode bf16 rows 32"))
    assert case.launch.stages == 2
    assert len(copies) * 16 * 32 * case.launch.warps == 2 * case.launch.blocks["BLOCK_N"] * (512 + 64) * 2
