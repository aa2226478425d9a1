"""Runs are timed in turn, round by round; a short one is called more often."""

import itertools
from collections import Counter

import pytest
import torch
import torch.utils.benchmark

from mhlib.experiments import timing
from mhlib.experiments.timing import in_turn


def test_runs_take_turns_after_one_untimed_call_each():
    called = []
    times = in_turn(lambda: called.append("a"), lambda: called.append("b"), repeats=3)
    assert "".join(called) == "ab" + "ababab"
    assert times.shape == (3, 2) and (times >= 0).all()


class Clock:
    """Time that passes only when a run says so: a busy machine cannot disturb it."""

    def __init__(self, monkeypatch):
        self.now, self.called = 0.0, Counter()
        monkeypatch.setattr(timing, "timer", lambda: self.now)

    def run(self, name: str, seconds: float):
        def call():
            self.called[name] += 1
            self.now += seconds

        return call


def test_seconds_are_those_of_one_call(monkeypatch):
    clock = Clock(monkeypatch)
    times = timing.in_turn(clock.run("short", 0.002), clock.run("long", 0.02), repeats=3, least=0.01)
    torch.testing.assert_close(times, torch.tensor([[0.002, 0.02]] * 3, dtype=torch.float64))


def test_a_short_run_is_called_until_it_has_taken_long_enough(monkeypatch):
    clock = Clock(monkeypatch)
    timing.in_turn(clock.run("short", 0.0011), clock.run("long", 0.02), repeats=2, least=0.01)
    assert clock.called == {"long": 1 + 2, "short": 2 + 2 * 10}


def test_the_clock_is_that_of_torch_which_waits_for_the_accelerator(monkeypatch):
    assert timing.timer is torch.utils.benchmark.timer
    ticks = itertools.count()
    monkeypatch.setattr(timing, "timer", lambda: float(next(ticks)))
    assert timing.in_turn(lambda: None, lambda: None, repeats=2).tolist() == [[1, 1], [1, 1]]


def test_nothing_to_time():
    with pytest.raises(ValueError, match="at least one run"):
        in_turn(repeats=3)
    with pytest.raises(ValueError, match="repeats=0"):
        in_turn(lambda: None, repeats=0)
