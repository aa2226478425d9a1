"""Runs are timed in turn, round by round; a short one is called more often."""

import itertools
import time

import pytest
import torch.utils.benchmark

from mhlib.experiments import timing
from mhlib.experiments.timing import in_turn


def test_runs_take_turns_after_one_untimed_call_each():
    called = []
    times = in_turn(lambda: called.append("a"), lambda: called.append("b"), repeats=3)
    assert "".join(called) == "ab" + "ababab"
    assert times.shape == (3, 2) and (times >= 0).all()


def test_seconds_are_those_of_one_call():
    times = in_turn(lambda: time.sleep(0.002), lambda: time.sleep(0.02), repeats=3, least=0.01)
    short, long = times.median(0).values.tolist()
    assert 0.002 <= short < long and long >= 0.02


def test_a_short_run_is_called_until_it_has_taken_long_enough():
    called = {"short": 0, "long": 0}

    def run(name: str, seconds: float):
        called[name] += 1
        time.sleep(seconds)

    in_turn(lambda: run("short", 0.001), lambda: run("long", 0.02), repeats=2, least=0.01)
    assert called["long"] == 1 + 2
    assert 2 + 2 < called["short"] <= 2 + 2 * 10


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
