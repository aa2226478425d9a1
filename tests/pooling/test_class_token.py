"""Class tokens: how they are drawn, who sees them, and that order is the encoder's business; memory layers; distillation."""

import pytest
import torch
from torch.nn import functional as F

from mhlib.experiments import TinyEncoder
from mhlib.pooling import ClassToken, ClassTokenPool, MemoryLayer, distillation_token_loss, memory_lookup


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_a_list_gives_one_of_its_tokens_in_training_and_their_mean_in_evaluation():
    token = ClassToken(4, "list", 3)
    drawn = token(2000)
    matches = (drawn[:, None] == token.mean).all(-1)
    assert (matches.sum(1) == 1).all()
    shares = matches.float().mean(0)
    assert (shares - 1 / 3).abs().max() < 0.06, f"each of 3 should be drawn a third of the time, not {shares.tolist()}"
    torch.testing.assert_close(token.eval()(5), token.mean.mean(0).expand(5, 4))


def test_a_normal_token_has_its_deviation_in_training_and_its_mean_in_evaluation():
    token = ClassToken(4, "gauss")
    with torch.no_grad():
        token.spread.fill_(1.0)
    drawn = token(20000)
    torch.testing.assert_close(drawn.mean(0), token.mean[0], atol=0.05, rtol=0)
    torch.testing.assert_close(drawn.std(0), F.softplus(token.spread)[0], atol=0.05, rtol=0)
    torch.testing.assert_close(token.eval()(3), token.mean.expand(3, 4))
    with torch.no_grad():
        token.spread.fill_(-1e4)  # no deviation at all: the plain token
    torch.testing.assert_close(token.train()(3), token.mean.expand(3, 4))


def test_divergence_from_the_standard_normal():
    token = ClassToken(4, "gauss").double()
    q = torch.distributions.Normal(token.mean[0], F.softplus(token.spread[0]))
    want = torch.distributions.kl_divergence(q, torch.distributions.Normal(torch.zeros(4), torch.ones(4))).sum()
    torch.testing.assert_close(token.divergence(), want)
    pool = ClassTokenPool(4, TinyEncoder(4, 2), draw="gauss")
    _, aux = pool(torch.randn(2, 3, 4), return_aux=True)
    torch.testing.assert_close(aux["divergence"], pool.tokens[0].divergence())
    aux["divergence"].backward()
    assert pool.tokens[0].spread.grad.abs().sum() > 0


def test_in_training_the_spread_learns():
    pool = ClassTokenPool(4, TinyEncoder(4, 2), draw="gauss").train()
    pool(torch.randn(2, 3, 4)).square().sum().backward()
    assert pool.tokens[0].spread.grad.abs().sum() > 0


def test_order_is_the_business_of_the_encoder():
    x, order = doubles(3, 6, 8), torch.tensor([3, 5, 0, 1, 4, 2])
    blind = ClassTokenPool(8, TinyEncoder(8, 2)).double()
    torch.testing.assert_close(blind(x[:, order]), blind(x))
    placed = ClassTokenPool(8, TinyEncoder(8, 2, max_tokens=7)).double()
    with torch.no_grad():
        placed.encoder.positions.weight.normal_()
    assert (placed(x[:, order]) - placed(x)).abs().max() > 1e-3


def test_distillation_adds_a_second_token():
    pool = ClassTokenPool(8, TinyEncoder(8, 2), distillation=True).double()
    x = doubles(3, 6, 8)
    y = pool(x)
    assert y.shape == (3, 2, 8) and not torch.allclose(y[:, 0], y[:, 1])
    u = torch.cat([token(3)[:, None] for token in pool.tokens] + [x], 1)
    torch.testing.assert_close(y, pool.encoder(u)[:, :2])


def test_a_memory_is_a_feed_forward_layer_with_a_softmax_inside():
    layer = MemoryLayer(6, 10).double()
    x = doubles(2, 3, 6)
    want = F.softmax(F.linear(x, layer.keys) / 6**0.5, -1) @ layer.values
    torch.testing.assert_close(layer(x), want)
    assert sum(p.numel() for p in MemoryLayer(6).parameters()) == 2 * 4 * 6 * 6


def test_top_k_reads_the_slots_with_the_largest_logits():
    keys, values = doubles(7, 4), doubles(7, 3)
    x = doubles(5, 4)
    best = (x @ keys.T).argmax(-1)
    torch.testing.assert_close(memory_lookup(x, keys, values, top_k=1), values[best])
    with pytest.raises(ValueError, match="1 to 7"):
        memory_lookup(x, keys, values, top_k=8)


def test_teacher_and_labels_reach_different_tokens():
    class_logits, token_logits, teacher = (doubles(4, 3).requires_grad_() for _ in range(3))
    labels = torch.tensor([0, 2, 1, 1])
    loss = distillation_token_loss(class_logits, token_logits, labels, teacher.detach(), temperature=2.0)
    by_hand = -class_logits.log_softmax(-1)[range(4), labels].mean()
    by_hand -= ((teacher / 2).softmax(-1) * (token_logits / 2).log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(loss, by_hand.detach(), check_stride=False)
    same = distillation_token_loss(class_logits, teacher, labels, teacher.detach())
    assert torch.autograd.grad(same, teacher)[0].abs().max() < 1e-12, "a student who agrees has nothing to learn"


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: ClassToken(4, "uniform"), "got 'uniform'"),
        (lambda: ClassToken(4, "gauss", 2), "only for draw='list', got 2"),
        (lambda: ClassToken(4).divergence(), "draw=None"),
        (lambda: distillation_token_loss(*[torch.zeros(1, 2)] * 2, torch.zeros(1, dtype=torch.long), torch.zeros(1, 2), temperature=0.0),
         "temperature must be positive, got 0.0"),
    ],
)  # fmt: skip
def test_wrong_arguments(call, text, as_a_user):
    with pytest.raises(ValueError, match=text):
        call()
