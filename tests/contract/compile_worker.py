"""Compiles every mechanism that promises it, forward and backward, and prints a JSON report.

A process of its own, because the run-time shape checks of the test session cannot be compiled.
"""

import json
import sys
import traceback

import torch

from mhlib import registry


def check(mechanism: registry.Mechanism) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    if mechanism.kind in ("head", "pool"):
        module = mechanism.example()
        x = torch.randn(2, 6, module.dim)
        calls = [((x,), {})]
        if mechanism.kind == "head":  # at the second length sizes become symbols
            calls = [((torch.randn(2, n, module.dim),), {"causal": "causal" in mechanism.properties}) for n in (6, 9)]
        target, wrt = module, list(module.parameters())
    elif mechanism.kind == "window_pool":
        module = mechanism.example()
        calls, target, wrt = [((torch.randn(2, getattr(module, "channels", 3), 8, 8, requires_grad=True),), {})], module, []
        wrt = [*module.parameters(), calls[0][0][0]]
    else:
        example = mechanism.example()
        inputs = {k: v.clone().requires_grad_() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in example.inputs.items()}
        calls, target = [((), inputs)], example.run
        wrt = [v for v in inputs.values() if isinstance(v, torch.Tensor) and v.requires_grad]
    compiled = torch.compile(target, fullgraph=True, backend="aot_eager")
    for args, kwargs in calls:
        want, got = target(*args, **kwargs), compiled(*args, **kwargs)
        torch.testing.assert_close(got, want)
        if mechanism.gradient != "none" and wrt:
            grads = [torch.autograd.grad(y.square().sum(), wrt, allow_unused=True, materialize_grads=True) for y in (got, want)]
            torch.testing.assert_close(*grads, atol=1e-4, rtol=1e-4)


report = {}
for name in sys.argv[1:]:
    try:
        check(registry.find(name))
        report[name] = ""
    except Exception:
        report[name] = traceback.format_exc(limit=-6)
print("REPORT " + json.dumps(report))
