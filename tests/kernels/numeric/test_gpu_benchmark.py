"""The GPU benchmark runs at tiny sizes: every kernel is compared with its peers, and what it writes can be read by chapters."""

from pathlib import Path

import pytest

from mhlib.book import recorded
from mhlib.kernels.aot import kernel_modules

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)  # benchmarks are no part of the package


def test_every_kernel_is_compared_and_recorded(tmp_path):
    from benchmarks import gpu
    from benchmarks.rates import Rates

    found = gpu.main(["--tiny", "--repeats", "1", "--no-tests"])
    kernels = {module.__name__.split(".")[-1] for module in kernel_modules() if hasattr(module, "counts")}
    assert set(found) == kernels
    for kernel, rows in found.items():
        for row in rows:
            assert row["ms"] > 0 and row["% of copy bandwidth"] >= 0, (kernel, row)
            assert any(key.endswith("times ours") for key in row), (kernel, row)
    gpu.write(found, Rates(1e9, 1e12), tmp_path, "cpu")
    for kernel in found:
        assert found[kernel][0]["shape"] in recorded(kernel, [tmp_path])._repr_mimebundle_()["text/html"]


def test_what_it_cannot_do_is_said(capsys):
    from benchmarks import gpu

    with pytest.raises(SystemExit):
        gpu.main(["--tiny", "--no-tests", "--only", "fast_attention"])
    assert "no kernel is called fast_attention; there are flash_attention" in capsys.readouterr().err


def test_shares_are_of_what_was_measured():
    from benchmarks.rates import Rates

    from mhlib.kernels.launch import Counts

    assert Rates(copy=1e9, matmul=1e12).shares(Counts(10**9, 0, 10**6), 0.002) == (50.0, 50.0)


def test_tuning_changes_one_number_at_a_time_and_leaves_the_table_as_it_was(capsys):
    from benchmarks import tune

    from mhlib.kernels import soft_pool2d  # noqa: F401 - its module holds the tables
    from mhlib.kernels.launch import Launch

    start = Launch({"BLOCK": 32}, warps=4, stages=1)
    changed = list(tune.neighbours(start))
    assert [launch.blocks["BLOCK"] for launch in changed] == [16, 64, 32, 32, 32]
    assert [(launch.warps, launch.stages) for launch in changed[2:]] == [(2, 1), (8, 1), (4, 2)]
    for table, size, launch, gain in tune.main(["soft_pool2d", "--tiny", "--repeats", "1"]):
        assert table and size and launch.blocks and gain >= tune.GAIN
    assert "soft_pool2d on Triton's interpreter" in capsys.readouterr().out
