"""The CPU benchmark runs at tiny sizes, compares before it times, and writes what chapters can read."""

from pathlib import Path

import pytest
import torch

from mhlib import registry
from mhlib.book import recorded

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)  # benchmarks are no part of the package


@pytest.mark.slow
def test_every_pool_and_every_layer_is_compared(tmp_path, capsys):
    from benchmarks import cpu

    found = cpu.main(["--tiny", "--repeats", "1"])
    shown = capsys.readouterr().out
    pools, attention = ({r.name for r in found[group]} for group in ("pools", "attention"))
    assert {"mean_pool", "generalized_mean_pool", "attention_pool", "ada_pool", "class_token_pool"} <= pools
    assert {"attention, auto", "attention, chunked", "MultiHeadAttention", "attention, one query, grouped"} <= attention
    built = {m.name: m.example() for m in registry.mechanisms().values() if m.kind == "pool"}
    of_sets = {name for name, pool in built.items() if hasattr(pool, "dim") and not getattr(pool, "inputs", ())}
    assert of_sets <= pools, f"missing from the table: {of_sets - pools}"
    for result in (*found["pools"], *found["attention"]):
        assert result.ours_ms > 0 and result.name in shown
        assert result.peer == "none" or (result.peer_ms > 0 and result.ratio > 0 and result.difference <= 1e-4), result
    assert sum(r.size.endswith("backward") for r in found["pools"]) > 10

    file = cpu.write(found, tmp_path)
    run = recorded("cpu-attention", [tmp_path])
    assert run and "MultiHeadAttention" in run._repr_mimebundle_()["text/html"]
    assert file.name.startswith("cpu-")


def test_what_computes_something_else_is_not_timed():
    from benchmarks.contest import Contest, compare

    x = torch.rand(2, 3, 4, requires_grad=True)
    mean = lambda: x.mean(1)  # noqa: E731
    result = next(compare([Contest("mean", "small", mean, {"torch": lambda: x.sum(1) / 3})], repeats=1))
    assert result.difference < 1e-6 and result.ratio > 0
    assert result.ours_mb > 0 and result.peer_mb > result.ours_mb, "dividing a sum takes one tensor more"
    with pytest.raises(ValueError, match="mean and sum differ by .*times cannot be compared"):
        next(compare([Contest("mean", "small", mean, {"sum": lambda: x.sum(1)})], repeats=1))
    detached = lambda: x.detach().mean(1) + 0 * x.sum()  # noqa: E731
    with pytest.raises(ValueError, match="differ"):  # equal outputs, other gradients
        next(compare([Contest("mean", "small", mean, {"cut off": detached}, (x,))], repeats=1))


def test_only_one_group_and_its_machine():
    from benchmarks import cpu

    assert set(cpu.groups(tiny=True)) == {"pools", "attention"}
    assert cpu.machine()
    with pytest.raises(SystemExit):
        cpu.main(["--only", "everything"])


def test_a_long_race_is_recorded(tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("mlxtend")
    from benchmarks import which_pool

    file = which_pool.main(["--steps", "2", "--seeds", "2", "--pools", "mean", "FocusMIL"], tmp_path)
    assert file.parent == tmp_path
    mean, focus = recorded("which-pool-when", [tmp_path]).runs[0]["rows"]
    assert mean["pool"] == "mean" and 0 <= mean["voices, %"] <= 100
    assert focus["voices, %"] is None and focus["bags, %"] is not None, "it knows two classes only"
