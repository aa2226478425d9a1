"""Launch tables of flash attention: block sizes, warps and stages by device class, bits and tile widths.

Chosen as the largest blocks that fit shared memory and spill no register when compiled (Triton 3.7.1); ``benchmarks/tune.py``
times them on a device. float32 is for comparison: 256 columns take the smallest blocks there are.
"""

from mhlib.kernels.launch import Launch, Table
from mhlib.kernels.targets import TARGETS


def _launch(rows: int, keys: int, warps: int, stages: int) -> Launch:
    return Launch({"BLOCK_M": rows, "BLOCK_N": keys}, warps, stages)


SIZES = ("bits", "width", "value_width")
TINY = _launch(16, 16, 4, 1)
COMMON = {("interpreter", 64, 256, 256): TINY} | {(target, 32, 256, 256): TINY for target in TARGETS}

FORWARD = Table(
    "flash_attention forward", SIZES,
    COMMON | {
        ("sm80", 16, 64, 64): _launch(128, 64, 8, 3),
        ("sm80", 16, 128, 128): _launch(128, 64, 8, 3),
        ("sm80", 16, 256, 128): _launch(128, 64, 8, 2),
        ("sm80", 16, 256, 256): _launch(64, 32, 8, 2),
        ("sm80", 32, 64, 64): _launch(32, 32, 4, 1),
        ("sm89", 16, 64, 64): _launch(128, 64, 8, 3),
        ("sm89", 16, 128, 128): _launch(128, 64, 8, 2),
        ("sm89", 16, 256, 128): _launch(64, 32, 4, 2),
        ("sm89", 16, 256, 256): _launch(64, 32, 8, 2),
        ("sm89", 32, 64, 64): _launch(32, 32, 4, 1),
        ("sm90", 16, 64, 64): _launch(128, 128, 8, 3),
        ("sm90", 16, 128, 128): _launch(128, 128, 8, 2),
        ("sm90", 16, 256, 128): _launch(128, 64, 8, 3),
        ("sm90", 16, 256, 256): _launch(64, 64, 8, 2),
        ("sm90", 32, 64, 64): _launch(64, 32, 4, 2),
        ("sm100", 16, 64, 64): _launch(128, 128, 8, 3),
        ("sm100", 16, 128, 128): _launch(128, 128, 8, 2),
        ("sm100", 16, 256, 128): _launch(128, 64, 8, 3),
        ("sm100", 16, 256, 256): _launch(64, 64, 8, 2),
        ("sm100", 32, 64, 64): _launch(32, 32, 4, 2),
        ("gfx942", 16, 64, 64): _launch(128, 64, 4, 3),
        ("gfx942", 16, 128, 128): _launch(128, 64, 8, 2),
        ("gfx942", 16, 256, 128): _launch(128, 64, 4, 2),
        ("gfx942", 16, 256, 256): _launch(64, 32, 8, 2),
        ("gfx942", 32, 64, 64): _launch(64, 32, 4, 2),
    },
)  # fmt: skip

QUERIES = Table(
    "flash_attention backward of queries", SIZES,
    COMMON | {
        ("sm80", 16, 64, 64): _launch(128, 64, 8, 3),
        ("sm80", 16, 128, 128): _launch(64, 64, 4, 3),
        ("sm80", 16, 256, 128): _launch(64, 64, 8, 2),
        ("sm80", 16, 256, 256): _launch(64, 64, 8, 2),
        ("sm80", 32, 64, 64): _launch(32, 32, 4, 2),
        ("sm89", 16, 64, 64): _launch(128, 64, 8, 3),
        ("sm89", 16, 128, 128): _launch(64, 64, 8, 2),
        ("sm89", 16, 256, 128): _launch(64, 32, 8, 2),
        ("sm89", 16, 256, 256): _launch(32, 32, 4, 1),
        ("sm89", 32, 64, 64): _launch(32, 32, 4, 2),
        ("sm90", 16, 64, 64): _launch(128, 64, 8, 3),
        ("sm90", 16, 128, 128): _launch(128, 64, 8, 3),
        ("sm90", 16, 256, 128): _launch(64, 64, 8, 2),
        ("sm90", 16, 256, 256): _launch(64, 32, 8, 2),
        ("sm90", 32, 64, 64): _launch(64, 32, 4, 2),
        ("sm100", 16, 64, 64): _launch(128, 64, 8, 3),
        ("sm100", 16, 128, 128): _launch(128, 64, 8, 3),
        ("sm100", 16, 256, 128): _launch(64, 64, 8, 2),
        ("sm100", 16, 256, 256): _launch(64, 64, 8, 2),
        ("sm100", 32, 64, 64): _launch(32, 32, 4, 2),
        ("gfx942", 16, 64, 64): _launch(128, 64, 8, 3),
        ("gfx942", 16, 128, 128): _launch(128, 64, 4, 3),
        ("gfx942", 16, 256, 128): _launch(32, 32, 4, 1),
        ("gfx942", 16, 256, 256): _launch(32, 32, 4, 1),
        ("gfx942", 32, 64, 64): _launch(64, 32, 4, 2),
    },
)  # fmt: skip

KEYS = Table(
    "flash_attention backward of keys", SIZES,
    COMMON | {
        ("sm80", 16, 64, 64): _launch(32, 128, 8, 2),
        ("sm80", 16, 128, 128): _launch(64, 64, 8, 2),
        ("sm80", 16, 256, 128): _launch(16, 64, 8, 1),
        ("sm80", 16, 256, 256): _launch(16, 64, 8, 1),
        ("sm80", 32, 64, 64): _launch(32, 32, 4, 2),
        ("sm89", 16, 64, 64): _launch(32, 128, 8, 2),
        ("sm89", 16, 128, 128): _launch(64, 64, 8, 2),
        ("sm89", 16, 256, 128): _launch(32, 64, 8, 2),
        ("sm89", 16, 256, 256): _launch(32, 32, 8, 1),
        ("sm89", 32, 64, 64): _launch(32, 32, 4, 1),
        ("sm90", 16, 64, 64): _launch(64, 128, 8, 2),
        ("sm90", 16, 128, 128): _launch(32, 128, 8, 2),
        ("sm90", 16, 256, 128): _launch(32, 32, 8, 1),
        ("sm90", 16, 256, 256): _launch(32, 32, 8, 1),
        ("sm90", 32, 64, 64): _launch(32, 32, 4, 1),
        ("sm100", 16, 64, 64): _launch(32, 128, 8, 2),
        ("sm100", 16, 128, 128): _launch(32, 64, 8, 1),
        ("sm100", 16, 256, 128): _launch(16, 64, 8, 1),
        ("sm100", 16, 256, 256): _launch(32, 32, 8, 1),
        ("sm100", 32, 64, 64): _launch(32, 32, 4, 1),
        ("gfx942", 16, 64, 64): _launch(32, 64, 4, 2),
        ("gfx942", 16, 128, 128): _launch(16, 64, 4, 2),
        ("gfx942", 16, 256, 128): _launch(16, 64, 8, 1),
        ("gfx942", 16, 256, 256): _launch(16, 64, 8, 1),
        ("gfx942", 32, 64, 64): _launch(32, 32, 4, 2),
    },
)  # fmt: skip

#: The products of outputs and their gradients, row by row.
DELTA = Table("flash_attention row products", ("bits", "value_width"), {("any", 64, 256): Launch({"BLOCK_M": 32}, stages=1)})
