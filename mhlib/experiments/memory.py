"""How much memory a computation holds at its peak, counted from the allocator's own events."""

import os
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["peak_memory"]


def peak_memory(run: Callable[[], Any]) -> int:
    """Bytes of tensors alive at the worst moment of ``run()``, beyond what was alive before it.

    On CUDA, the allocator's counter; on CPU, the running sum of the profiler's allocation events. Memory that a kernel
    takes behind PyTorch's back is not seen.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        on_device = torch.cuda.max_memory_allocated() - before
        if on_device:
            return on_device
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells of its start and stop otherwise
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = run()  # kept alive: what is returned counts
    del result
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak
