"""Every registered mechanism fulfils the contract of its kind: registering it is what gets it tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from contract import heads, others, pools

from mhlib.registry import KINDS, mechanisms

CONTRACTS = {
    "head": heads.CHECKS,
    "pool": pools.CHECKS,
    "window_pool": pools.WINDOW_CHECKS,
    "output_head": others.OUTPUT_HEAD_CHECKS,
    "function": others.FUNCTION_CHECKS,
    "training": others.TRAINING_CHECKS,
    "analysis": others.ANALYSIS_CHECKS,
    "system": others.SYSTEM_CHECKS,
}
MECHANISMS = mechanisms()


def test_every_kind_has_a_contract():
    assert set(CONTRACTS) == set(KINDS)


@pytest.mark.parametrize(
    "name, check",
    [
        pytest.param(name, check, id=f"{name}-{check.__name__}")
        for name, mechanism in MECHANISMS.items()
        for check in CONTRACTS[mechanism.kind]
    ],
)
def test_contract(name, check, record_property):
    record_property("mechanism", name)
    torch.manual_seed(torch.randint(2**31, ()).item())
    check(MECHANISMS[name])


@pytest.mark.parametrize(
    "name, i", [pytest.param(n, i, id=f"{n}-{i}") for n, m in MECHANISMS.items() for i in range(len(m.reductions))]
)
def test_reduction(name, i, record_property):
    """Both sides agree in their output and in the gradient of their input."""
    record_property("mechanism", name)
    mechanism = MECHANISMS[name]
    reduction = mechanism.reductions[i]
    ours, reduced = reduction.build()
    if mechanism.kind not in ("head", "pool", "training"):
        torch.testing.assert_close(ours(), reduced(), atol=1e-9, rtol=1e-9)
        return
    ours, reduced = (side.double().eval() if isinstance(side, torch.nn.Module) else side for side in (ours, reduced))
    dim = next(side.dim for side in (ours, reduced) if hasattr(side, "dim"))
    for call in reduction.calls:
        x = torch.randn(2, 6, dim, dtype=torch.float64, requires_grad=True)
        results = [(y := side(x, **call), torch.autograd.grad(y.square().sum(), x)[0]) for side in (ours, reduced)]
        # Weights are made in float32, so what was factored or averaged there agrees no better than that.
        torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4, msg=lambda text: f"{reduction.text} {call}: {text}")


@pytest.fixture(scope="module")
def compile_report():
    names = [name for name, m in MECHANISMS.items() if "compiles" in m.properties]
    worker = Path(__file__).with_name("compile_worker.py")
    run = subprocess.run([sys.executable, worker, *names], capture_output=True, text=True, check=False)
    reports = [line for line in run.stdout.splitlines() if line.startswith("REPORT ")]
    assert reports, run.stderr[-3000:]
    return json.loads(reports[0].removeprefix("REPORT "))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name, m in MECHANISMS.items() if "compiles" in m.properties])
def test_compiles(name, compile_report, record_property):
    record_property("mechanism", name)
    assert compile_report[name] == ""
