"""FocusMIL: its bottleneck, which instances learn, and the order of its maximum."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from mhlib.experiments.memory import peak_memory
from mhlib.pooling import FocusMIL


def bags(batch=3, tokens=7, dim=5):
    return torch.randn(batch, tokens, dim, dtype=torch.float64)


def pool():
    return FocusMIL(5, hidden=16, code=3).double()


@pytest.mark.peer("focus_mil", "torch")
def test_divergence_is_that_of_torch_distributions():
    focus, x = pool(), bags()
    keep = torch.rand(3, 7) > 0.4
    keep[:, 0] = True
    _, aux = focus(x, keep, return_aux=True)
    h = focus.encoder(x)
    codes = Normal(focus.mean(h), (focus.log_variance(h) / 2).exp())
    want = kl_divergence(codes, Normal(torch.zeros(3).double(), torch.ones(3).double())).sum(-1)
    torch.testing.assert_close(aux["divergence"], torch.stack([w[k].mean() for w, k in zip(want, keep)]))


def test_codes_in_training_have_the_mean_and_the_variance_that_the_encoder_says():
    focus, x = pool(), bags(1, 1)
    h = focus.encoder(x)
    many = x.expand(1, 20_000, 5)
    with torch.no_grad():
        s = focus.train()(many, return_aux=True)[1]["instances"].flatten()
    w = focus.score.weight[0]
    mean = focus.score(focus.mean(h)).item()
    variance = (w.square() * focus.log_variance(h)[0, 0].exp()).sum().item()
    assert abs(s.mean() - mean) < 5 * (variance / len(s)) ** 0.5
    assert abs(s.var() / variance - 1) < 0.1


def test_loss_is_cross_entropy_plus_divergence():
    focus, x, labels = pool().eval(), bags(), torch.tensor([1.0, 0.0, 1.0])
    y, aux = focus(x, return_aux=True)
    want = F.binary_cross_entropy(y[:, 0].sigmoid(), labels.double()) + 0.3 * aux["divergence"].mean()
    torch.testing.assert_close(focus.loss(x, labels, beta=0.3), want)


def test_cross_entropy_teaches_one_instance_of_a_bag_and_the_divergence_all():
    focus, x, labels = pool(), bags().requires_grad_(), torch.tensor([1.0, 0.0, 1.0])
    reached = lambda beta: torch.autograd.grad(focus.loss(x, labels, beta=beta), x)[0].abs().sum(-1) > 0  # noqa: E731
    assert reached(0.0).sum(1).tolist() == [1, 1, 1]
    assert reached(0.1).all()


def test_an_instance_more_never_lowers_the_logit():
    focus, x = pool().eval(), bags()
    found = torch.stack([focus(x[:, : n + 1]) for n in range(7)])
    assert (found.diff(dim=0) > -1e-12).all()
    torch.testing.assert_close(found[-1], focus(x, return_aux=True)[1]["instances"].amax(1, keepdim=True))


def test_evaluation_is_free_of_noise_and_training_is_not():
    focus, x = pool(), bags()
    assert not torch.equal(focus(x), focus(x))
    focus.eval()
    assert torch.equal(focus(x), focus(x))


def test_a_million_instances_in_bounded_memory():
    focus, pieces = FocusMIL(4, hidden=8, code=2).eval(), 50
    piece = lambda seed: torch.randn(1, 20_000, 4, generator=torch.Generator().manual_seed(seed))  # noqa: E731

    @torch.no_grad()
    def streamed():
        state = focus.start(1, torch.empty(0))
        for seed in range(pieces):
            state = focus.update(state, piece(seed))
        return state

    held, whole = peak_memory(streamed), 4 * 4 * 20_000 * pieces
    assert held < whole / 2, f"{held} bytes for a bag of {whole}"  # a piece's hidden units are larger than the piece
    with torch.no_grad():
        bag = torch.cat([piece(seed) for seed in range(pieces)], 1)
        torch.testing.assert_close(focus.finish(streamed()), focus(bag))


def test_errors(as_a_user):
    with pytest.raises(ValueError, match="hidden and code must be at least 1, got 8 and 0"):
        FocusMIL(4, hidden=8, code=0)
