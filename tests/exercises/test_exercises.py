"""Every exercise accepts a right solution, and rejects each typical wrong answer with the hint that fits it."""

import pytest
import torch
from exercises import solutions

from mhlib import exercises
from mhlib.exercises.declare import Random, find

NAMES = exercises.names()
MISTAKES = [(name, i) for name in NAMES for i in range(len(find(name).mistakes))]
SEEDS = range(8)


def test_there_are_exercises_for_every_chapter():
    modules = {find(name).reference.__module__.split(".")[-1] for name in NAMES}
    assert {"multi_head", "linear_memory", "sharing", "latent"} <= modules


@pytest.mark.parametrize("name", NAMES)
def test_accepts_a_solution_written_apart(name):
    for seed in SEEDS:
        result = exercises.check(name, getattr(solutions, name), seed=seed)
        assert result.passed, str(result)


@pytest.mark.parametrize("name, i", MISTAKES)
def test_rejects_each_typical_mistake_with_its_own_hint(name, i):
    hint, mistake = find(name).mistakes[i]
    for seed in SEEDS:
        result = exercises.check(name, mistake, seed=seed)
        assert result.state == "failed" and result.hint == hint, f"seed {seed}: {result}"
        assert [label for label, _ in result.rows] == ["Input", "Expected", "Yours"]


@pytest.mark.parametrize("name, solution", solutions.WASTEFUL)
def test_rejects_what_makes_too_large_a_tensor(name, solution):
    for seed in SEEDS:
        result = exercises.check(name, solution, seed=seed)
        assert result.state == "failed" and result.wasteful and result.hint == find(name).wasteful
        assert "output is right" in result.message and "Its shape" in dict(result.rows)


def test_every_memory_limit_is_tried():
    assert {name for name, _ in solutions.WASTEFUL} == {name for name in NAMES if find(name).largest}


@pytest.mark.parametrize("name", NAMES)
def test_is_neutral_as_long_as_nothing_is_there(name):
    def unfinished(*arguments):
        raise NotImplementedError

    for function in (lambda *_: None, lambda *_: ..., lambda *_: (None, None), unfinished, None, ...):
        result = exercises.check(name, function)
        assert result.state == "open" and not result and not result.hint
        assert f"function of ({', '.join(find(name).arguments)})" in result.message


@pytest.mark.parametrize("name", NAMES)
def test_declaration_is_fit_to_be_shown(name):
    exercise = find(name)
    assert exercise.reference.__name__ == name and exercise.reference.__doc__
    assert len(exercise.mistakes) >= 3 and len({hint for hint, _ in exercise.mistakes}) == len(exercise.mistakes)
    cases = list(exercise.cases(Random(0)))
    assert len(cases) >= 3
    first = [t for t in torch.utils._pytree.tree_leaves(list(cases[0])) if isinstance(t, torch.Tensor)]
    assert sum(t.numel() for t in first) <= 60, "the first case is the one that is shown most: keep it small"
    assert all(t.dtype in (torch.float64, torch.bool) for t in first)


def test_cases_are_fresh_unless_a_seed_is_given():
    def wrong(x, num_heads):
        return torch.zeros(x.shape[0], num_heads, x.shape[1], x.shape[2] // num_heads, dtype=x.dtype)

    drawn = [exercises.check("split_heads", wrong, **seed).inputs["x"] for seed in ({}, {}, {"seed": 3}, {"seed": 3})]
    assert not torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[2], drawn[3])
