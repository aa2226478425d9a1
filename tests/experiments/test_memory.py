"""Peak memory: what is alive together counts, what was freed before does not."""

import torch

from mhlib.experiments.memory import peak_memory


def test_counts_what_is_alive_together():
    def one_after_the_other():
        for _ in range(5):
            torch.empty(1000, 1000)

    def together():
        return [torch.empty(1000, 1000) for _ in range(5)]

    assert peak_memory(one_after_the_other) == 4_000_000
    assert peak_memory(together) == 20_000_000


def test_what_was_there_before_does_not_count():
    x = torch.ones(1000, 1000)
    assert peak_memory(lambda: x @ x) == 4_000_000
    assert peak_memory(lambda: x.add_(1)) < 1000
