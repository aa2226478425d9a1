"""Models trained together are the models trained alone."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mhlib import pooling
from mhlib.experiments import Together


class Net(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.pool, self.read = nn.Linear(3, 8), pooling.AttentionPool(8, 2), nn.Linear(8, 2)

    def forward(self, x, key_mask=None):
        return self.read(self.pool(self.embed(x), key_mask))


def batches(models, steps):
    random = torch.Generator().manual_seed(0)
    for _ in range(steps):
        keep = torch.rand(models, 4, 5, generator=random) > 0.3
        keep[..., 0] = True
        yield torch.randn(models, 4, 5, 3, generator=random), keep, torch.randint(2, (models, 4), generator=random)


def losses(together, batch):
    x, keep, y = batch
    out = together(x, keep)
    return F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)


def test_together_is_alone():
    together = Together([Net(seed) for seed in range(3)])
    found = together.train(batches(3, 12), 12, losses, lr=3e-2)
    assert found.shape == (12, 3)
    for i in range(3):
        alone = Net(i)
        optimizer = torch.optim.Adam(alone.parameters(), lr=3e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-2, total_steps=12)
        for step, (x, keep, y) in enumerate(batches(3, 12)):
            loss = F.cross_entropy(alone(x[i], keep[i]), y[i])
            torch.testing.assert_close(loss.detach(), found[step, i], atol=1e-4, rtol=1e-4)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        for mine, theirs in zip(together.model(i).parameters(), alone.parameters()):
            torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-3)
    x = torch.randn(3, 2, 5, 3)
    torch.testing.assert_close(together(x, None)[1], together.model(1)(x[1]))


def test_each_draws_its_own_noise():
    together = Together([nn.Dropout(0.5), nn.Dropout(0.5)])
    together.skeleton.train()
    first, second = together(torch.ones(2, 1000))
    assert (first != second).any()


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: Together([]), "at least one model"),
        (lambda: Together([nn.Linear(2, 2), nn.Linear(2, 3)]), "same names and shapes"),
        (lambda: Together([Net(0)]).train(batches(1, 2), 3, losses), "ended after 2 of 3 steps"),
        (lambda: Together([Net(0)]).train(itertools.repeat(0), 1, lambda *_: torch.tensor([float("nan")])), "not finite at step 1"),
    ],
)
def test_wrong_arguments(call, text, as_a_user):
    with pytest.raises(ValueError, match=text):
        call()
