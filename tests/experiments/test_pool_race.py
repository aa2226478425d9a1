"""All pools take part in the race, a pool that fits the task learns it, and the tasks are what they say."""

import pytest
import torch

from mhlib import registry
from mhlib.experiments import RACING_POOLS, SetNet, race, set_tasks


@pytest.fixture(scope="module")
def tasks():
    pytest.importorskip("sklearn")
    pytest.importorskip("mlxtend")
    return set_tasks()


def test_tasks(tasks):
    assert list(tasks) == ["voices", "digits", "bags"]
    for task in tasks.values():
        for part in (task.train, task.test):
            assert len(part.x) == len(part.labels) and part.labels.unique().tolist() == list(range(task.classes))
        x, key_mask, _ = task.train
        real = x.flatten(0, 1) if key_mask is None else x[key_mask]
        assert real.mean(0).abs().max() < 0.2 and 0.5 < real.std() < 1.2


@pytest.mark.parametrize("name", RACING_POOLS)
def test_every_pool_gives_logits_and_ignores_padding(name, tasks):
    racing = RACING_POOLS[name]
    for task in tasks.values():
        if not racing.takes(task):
            with pytest.raises(ValueError, match=f"knows 2 classes, the task has {task.classes}"):
                race(task, racing, 1)
            continue
        torch.manual_seed(0)
        net = SetNet(task, racing).eval()
        x = task.train.x[:4]
        keep = None if task.train.key_mask is None else task.train.key_mask[:4]
        y = net(x, keep)
        assert y.shape == (4, task.classes) and y.isfinite().all()
        if keep is not None:
            torch.testing.assert_close(net(torch.where(keep[..., None], x, 7.0), keep), y)


def test_a_race_is_repeatable_and_learns(tasks):
    mean = RACING_POOLS["mean"]
    state = torch.random.get_rng_state()
    first, second = (race(tasks["voices"], mean, 20, seeds=3) for _ in range(2))
    assert torch.equal(first, second) and torch.equal(state, torch.random.get_rng_state())
    assert first.min() > 60, "nine speakers, the most frequent has 24 %"
    assert first.unique().numel() > 1, "seeds differ"


def test_most_registered_pools_take_part():
    """A new pool need not, but then the page says so; those of the first issue do."""
    taken = {type(racing.make(2)) for racing in RACING_POOLS.values()}
    rows = {n for m in registry.mechanisms().values() if m.kind == "pool" and m.obj in taken for n in m.papers}
    assert {1, 2, 3, 4, 5, 7, 9, 12, 22, 27, 38, 42, 59, 69, 93, 179, 186, 284} <= rows
