"""Exercises of the chapters on how a GPU sees attention and on writing its kernel."""

import math

from mhlib.exercises.declare import Random, exercise


def _byte_cases(random: Random):
    for n, m, d, size in ((2, 16, 8, 2), (128, 128, 64, 2), (64, random.integer(100, 900), 32, 4), (7, 100, 16, 1)):
        for fused in (True, False):
            yield n, m, d, size, fused


def _bytes(n: int, m: int, d: int, size: int, fused: bool, *, tables: int = 4, ends: int = 2) -> int:
    return size * (ends * n * d + 2 * m * d + (0 if fused else tables * n * m))


@exercise(
    "attention_bytes",
    cases=_byte_cases,
    mistakes=(
        (
            "Without fusion the table crosses the bus four times: logits written and read, weights written and read.",
            lambda *sizes: _bytes(*sizes, tables=2),
        ),
        ("A fused kernel moves no table.", lambda n, m, d, size, fused: _bytes(n, m, d, size, False)),
        ("The output is written, too.", lambda *sizes: _bytes(*sizes, ends=1)),
        ("These are numbers, not bytes.", lambda n, m, d, size, fused: _bytes(n, m, d, 1, fused)),
    ),
)
def attention_bytes(n: int, m: int, d: int, size: int, fused: bool) -> int:
    """Bytes that one head's attention moves at least: n queries, m keys, width d, numbers of ``size`` bytes."""
    return _bytes(n, m, d, size, fused)


def _ridge_cases(random: Random):
    for heads, groups, size in ((32, 32, 2), (32, 8, 2), (64, 1, 2), (128, 1, 1), (16, 4, 4)):
        yield heads, groups, size, random.uniform(90.0, 300.0)


@exercise(
    "queries_to_ridge",
    cases=_ridge_cases,
    mistakes=(
        (
            "Each number that is read serves the heads of its whole group: the intensity is 2 n H / (size G).",
            lambda heads, groups, size, ridge: math.ceil(ridge * size / 2),
        ),
        (
            "The group counts the other way round: more heads for each key head mean fewer queries.",
            lambda heads, groups, size, ridge: math.ceil(ridge * size * heads / (2 * groups)),
        ),
        ("A multiply and an add are 2 FLOPs.", lambda heads, groups, size, ridge: math.ceil(ridge * size * groups / heads)),
        ("There is no half query; round up.", lambda heads, groups, size, ridge: ridge * size * groups / (2 * heads)),
    ),
)
def queries_to_ridge(heads: int, groups: int, size: int, ridge: float) -> int:
    """The least number of queries per step with which grouped attention over a long cache is bound by arithmetic."""
    return math.ceil(ridge * size * groups / (2 * heads))


def _window_cases(random: Random):
    for n, window, rows, columns in ((32, 8, 16, 16), (64, 16, 16, 16), (100, 1, 32, 16), (96, 40, 16, 32), (random.integer(130, 300), 70, 32, 64)):
        yield n, window, rows, columns


def _visited(n: int, window: int, rows: int, columns: int, *, reach: int = 1, left: bool = True, end: bool = True) -> int:
    total = 0
    for start in range(0, n, rows):
        first = max(0, start - window + reach) // columns if left else 0
        last = (min(n, start + rows) - 1) // columns if end else (n - 1) // columns
        total += last - first + 1
    return total


@exercise(
    "window_tiles",
    cases=_window_cases,
    mistakes=(
        ("Tiles before the window are visited here; start at the first key that the first query sees.", lambda *sizes: _visited(*sizes, left=False)),
        ("Tiles after the diagonal are visited here; end at the last query of the tile.", lambda *sizes: _visited(*sizes, end=False)),
        ("The window holds the query itself: its first key is p - window + 1.", lambda *sizes: _visited(*sizes, reach=0)),
        ("The first query of a tile reaches farthest back, not the last.", lambda n, window, rows, columns: _visited(n, window - rows + 1, rows, columns)),
    ),
)
def window_tiles(n: int, window: int, BQ: int, BK: int) -> int:
    """Key tiles that the programs of one head visit under a causal sliding window."""
    return _visited(n, window, BQ, BK)
