"""Training: the same numbers for the same seed, the schedule, errors, and what it leaves alone."""

import io
import itertools

import pytest
import torch
from torch import nn

from mhlib.data.text import Text
from mhlib.experiments import Record, TinyLM, evaluate, train
from mhlib.heads import MultiHeadAttention

TEXT = Text(train=torch.arange(300) % 7, valid=torch.arange(100) % 7)


def build(dropout=0.0, seed=0):
    torch.manual_seed(seed)
    return TinyLM(7, lambda dim: MultiHeadAttention(dim, 4, dropout=dropout), dim=16)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_training_is_deterministic_and_leaves_the_global_generator_alone(dropout):
    runs = []
    for noise in (1, 2):
        model = build(dropout)
        torch.manual_seed(noise)
        state = torch.get_rng_state()
        runs.append(train(model, TEXT.batches(4, 9), 6).losses)
        assert torch.equal(torch.get_rng_state(), state)
    assert runs[0] == runs[1]
    assert train(build(dropout), TEXT.batches(4, 9, seed=1), 6).losses != runs[0]
    if dropout:
        assert train(build(dropout), TEXT.batches(4, 9), 6, seed=1).losses != runs[0]


def test_losses_fall_and_the_record_says_so():
    record = train(build(), TEXT.batches(4, 9), 60)
    assert len(record.losses) == 60 and record.last < 0.5 < 1.5 < record.losses[0]
    assert repr(record).startswith("Record(60 steps, loss ")
    assert Record((5.0,) * 18 + (1.0, 2.0), 1.0).last == 1.5


def test_the_rate_rises_in_a_line_and_falls_to_zero_along_a_cosine():
    """With gradients of one sign and constant size, a step of Adam is as long as the rate."""
    model = nn.Linear(1, 1, bias=False)
    seen = []

    def loss(batch):
        seen.append(model.weight.item())
        return model.weight.sum()

    train(model, itertools.repeat(None), 21, lr=0.1, warmup=0.25, weight_decay=0.0, loss=loss)
    steps = [a - b for a, b in itertools.pairwise(seen)]
    want = [0.02, 0.04, 0.06, 0.08, 0.1, 0.1]
    torch.testing.assert_close(torch.tensor(steps[:6]), torch.tensor(want), atol=1e-4, rtol=0)
    assert all(a > b for a, b in itertools.pairwise(steps[5:])) and steps[-1] < 0.01
    assert steps[12] == pytest.approx(0.1 * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * 7 / 16))).item(), abs=1e-4)


def test_weight_decay_spares_vectors():
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.weight.fill_(1.0), model.bias.fill_(1.0)
    train(model, itertools.repeat(None), 5, lr=0.1, weight_decay=0.5, loss=lambda _: 0.0 * model.weight.sum() + 0.0 * model.bias.sum())
    assert (model.weight < 0.99).all() and (model.bias == 1).all()


def test_gradients_are_clipped():
    """Two losses that differ by a factor train alike once both are clipped, up to Adam's epsilon."""
    results = []
    for factor in (1e3, 1e6):
        model = build()
        train(model, TEXT.batches(4, 9), 3, loss=lambda ids: factor * model.loss(ids), clip=0.1)
        results.append(torch.cat([p.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


def test_only_what_requires_a_gradient_is_trained_and_the_mode_is_kept():
    model = build().eval()
    model.embedding.requires_grad_(False)
    before = model.embedding.weight.clone()
    train(model, TEXT.batches(4, 9), 3)
    assert torch.equal(model.embedding.weight, before) and not model.training
    assert model.blocks[0].attention.q_proj.weight.grad is not None


def test_batches_of_pairs_and_a_loss_of_ones_own():
    torch.manual_seed(0)
    model, x = nn.Linear(3, 1), torch.randn(50, 3)
    pairs = itertools.repeat((x, x.sum(1, keepdim=True)))
    record = train(model, pairs, 200, lr=0.1, weight_decay=0.0, loss=lambda batch: (model(batch[0]) - batch[1]).square().mean())
    assert record.last < 1e-3


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        train(build(), TEXT.batches(4, 9), 0)
    with pytest.raises(ValueError, match="batches ended after 2 of 5 steps"):
        train(build(), itertools.islice(TEXT.batches(4, 9), 2), 5)
    model = build()
    with pytest.raises(ValueError, match="the loss is nan at step 1: try a smaller lr than 0.5"):
        train(model, TEXT.batches(4, 9), 5, lr=0.5, loss=lambda ids: model.loss(ids) * float("nan"))
    with pytest.raises(ValueError, match=r"takes length \+ 1 = 65 tokens, got 20 tokens"):
        evaluate(model, TEXT.valid[:20])


def test_evaluate_is_the_mean_over_the_whole_text_whatever_the_batch():
    model = build(dropout=0.5)
    want = torch.stack([model.eval().loss(TEXT.valid[None, i : i + 10]) for i in range(0, 99, 9)]).mean().item()
    model.train()
    for batch in (1, 4, 32):
        assert evaluate(model, TEXT.valid, length=9, batch=batch) == pytest.approx(want, abs=1e-5)
    assert model.training


@pytest.mark.parametrize("interactive", [True, False])
def test_progress_is_for_terminals(monkeypatch, interactive):
    screen = io.StringIO()
    screen.isatty = lambda: interactive
    monkeypatch.setattr("sys.stderr", screen)
    train(build(), TEXT.batches(4, 9), 12)
    shown = screen.getvalue()
    assert ("step 12/12, loss" in shown and shown.endswith("\n")) if interactive else shown == ""
