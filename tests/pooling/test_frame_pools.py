"""The two pools of frames of row 4: attentive average and QKV."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mhlib import cost
from mhlib.heads import MultiHeadAttention
from mhlib.pooling import AttentiveAveragePool, QKVPool


def frames(batch=3, tokens=9, dim=8):
    return torch.randn(batch, tokens, dim, dtype=torch.float64)


def keep(batch=3, tokens=9):
    mask = torch.rand(batch, tokens) > 0.4
    mask[:, 0] = True
    return mask


def test_attentive_average_by_hand():
    pool, x = AttentiveAveragePool(8, 2).double(), frames()
    contexts, weights = [], []
    for h in range(2):
        rows = slice(4 * h, 4 * h + 4)
        hidden = torch.tanh(x @ pool.hidden.weight[rows].T + pool.hidden.bias[rows])
        weights.append((hidden @ pool.query[0, rows]).softmax(1))
        contexts.append((weights[-1][..., None] * x).sum(1))
    y, ours = pool(x, return_weights=True)
    torch.testing.assert_close(y, torch.cat(contexts, -1) @ pool.o_proj.weight.T)
    torch.testing.assert_close(ours[:, :, 0], torch.stack(weights, 1))


def test_qkv_leaves_padding_out_of_questions_and_answers():
    pool, attention = QKVPool(8, 2).double(), MultiHeadAttention(8, 2).double()
    attention.load_state_dict(pool.state_dict())
    x, mask = frames(), keep()
    for y in (pool(x, mask), pool(x, mask, return_weights=True)[0]):  # fused, and by the column means
        for i in range(3):
            real = x[i : i + 1, mask[i]]
            torch.testing.assert_close(y[i], attention(real).mean(1)[0])


def test_qkv_weights_are_column_means():
    pool, x = QKVPool(8, 2).double(), frames()
    _, weights = pool(x, return_weights=True)
    q, k = (proj(x).unflatten(-1, (2, 4)).transpose(1, 2) for proj in (pool.q_proj, pool.k_proj))
    table = (q @ k.mT / 2).softmax(-1)
    torch.testing.assert_close(weights, table.mean(2, keepdim=True))
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 1, dtype=torch.float64))


def test_the_mean_may_ask_alone():
    pool, attention = QKVPool(8, 2, asks="mean").double(), MultiHeadAttention(8, 2).double()
    attention.load_state_dict(pool.state_dict())
    x = frames()
    torch.testing.assert_close(pool(x), attention(x.mean(1, keepdim=True), x)[:, 0])
    mask = keep()
    junk = torch.where(mask[..., None], x, 1e3)
    torch.testing.assert_close(pool(junk, mask), pool(x, mask))


@pytest.mark.parametrize("make", [AttentiveAveragePool, QKVPool])
def test_one_token_and_constant_tokens(make):
    pool = make(8, 2).double()
    one = frames(tokens=1)
    torch.testing.assert_close(pool(one.expand(-1, 5, -1)), pool(one))
    gradient = torch.autograd.grad(pool(x := one.expand(-1, 5, -1).clone().requires_grad_()).sum(), x)[0]
    assert gradient.isfinite().all()


@pytest.mark.parametrize("make, queries", [(AttentiveAveragePool, 1), (QKVPool, 9)])
def test_cost_is_counted(make, queries):
    pool = make(8, 2)
    counted = cost.of(pool, queries=queries, keys=9, batch=2)
    assert counted.parameters == sum(p.numel() for p in pool.parameters())
    with FlopCounterMode(display=False) as counter:
        pool(torch.randn(2, 9, 8), return_weights=True)
    assert counted.matmul_flops == counter.get_total_flops()


def test_errors(as_a_user):
    with pytest.raises(ValueError, match="asks must be 'tokens' or 'mean', got 'both'"):
        QKVPool(8, asks="both")
    with pytest.raises(ValueError, match="num_heads must divide dim"):
        AttentiveAveragePool(8, 3)
