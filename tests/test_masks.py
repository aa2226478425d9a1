"""Masks: each rule against a loop, combination, alignment, flex form, errors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mhlib import attention, masks


def near(position, length, size):
    start = min(max(position - (size - 1) // 2, 0), length - size)
    return range(start, start + size)


IDS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3])
RULES = [
    (masks.Causal(), lambda q, k: k <= q),
    (masks.SlidingWindow(3, 1), lambda q, k: q - 3 <= k <= q + 1),
    (masks.Dilated(2, 3), lambda q, k: k in {q + 3 * s for s in range(-2, 3)}),
    (masks.Block(5), lambda q, k: q // 5 == k // 5),
    (masks.Prefix(4), lambda q, k: k < 4),
    (masks.Document(IDS), lambda q, k: IDS[q] == IDS[k]),
    (masks.Neighborhood1d(12, 5), lambda q, k: k in near(q, 12, 5)),
    (masks.Neighborhood2d(3, 4, 3), lambda q, k: k // 4 in near(q // 4, 3, 3) and k % 4 in near(q % 4, 4, 3)),
]


@pytest.mark.parametrize("mask, rule", RULES, ids=lambda x: repr(x)[:24])
def test_dense_equals_a_loop(mask, rule):
    table = mask.dense(12)
    assert table.shape == (1, 1, 12, 12) and table.dtype == torch.bool
    for q in range(12):
        for k in range(12):
            assert table[0, 0, q, k].item() == bool(rule(q, k)), (q, k)


@pytest.mark.parametrize("mask, rule", RULES, ids=lambda x: repr(x)[:24])
def test_last_query_stands_at_last_key(mask, rule):
    assert torch.equal(mask.dense(4, 12), mask.dense(12)[:, :, -4:])


@pytest.mark.parametrize("mask, rule", RULES, ids=lambda x: repr(x)[:24])
def test_flex_form_is_the_same_rule(mask, rule):
    q, k = torch.arange(4).view(-1, 1), torch.arange(12)
    zero = torch.zeros((), dtype=torch.long)
    assert torch.equal(mask.flex(4, 12)(zero, zero, q, k).expand(4, 12), mask.dense(4, 12)[0, 0])


@given(st.integers(0, len(RULES) - 1), st.integers(0, len(RULES) - 1))
def test_combination(i, j):
    a, b = RULES[i][0], RULES[j][0]
    assert torch.equal((a & b).dense(12), a.dense(12) & b.dense(12))
    assert torch.equal((a | b).dense(12), a.dense(12) | b.dense(12))
    assert torch.equal((~a).dense(12), ~a.dense(12))
    assert torch.equal((~(a & b)).dense(5, 12), (~a | ~b).dense(5, 12))


def test_one_rule_per_sequence():
    lengths = torch.tensor([2, 5])
    table = (masks.Causal() | masks.Prefix(lengths)).dense(6, batch=2)
    for b in range(2):
        assert torch.equal(table[b : b + 1], (masks.Causal() | masks.Prefix(int(lengths[b]))).dense(6))
    ids = torch.tensor([[0, 0, 1], [0, 1, 1]])
    assert torch.equal(masks.Document(ids).dense(3, batch=2)[:, 0], ids[:, :, None] == ids[:, None, :])


def test_neighborhoods_see_equally_many_keys():
    assert (masks.Neighborhood2d(5, 6, 3).dense(30).sum(-1) == 9).all()


def test_plot_draws_the_table():
    plt = pytest.importorskip("matplotlib.pyplot")
    ax = masks.Causal().plot(5)
    assert torch.equal(torch.as_tensor(ax.images[0].get_array().data).bool(), masks.Causal().dense(5)[0, 0])
    assert ax.get_title() == "Causal()" and ax.get_xlabel() == "key position"
    plt.close("all")


def test_names():
    assert repr(masks.Causal() & ~masks.Document(IDS)) == "(Causal() & ~Document(ids=(12,)))"


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: masks.SlidingWindow(-1), "left must be an integer of at least 0, got -1"),
        (lambda: masks.Block(0), "size must be an integer of at least 1, got 0"),
        (lambda: masks.Neighborhood1d(4, 5), "size=5 does not fit into length=4"),
        (lambda: masks.Document(torch.zeros(3)), r"integer ids of shape \(tokens,\) or .*got torch.float32 \(3,\)"),
    ],
)
@pytest.mark.usefixtures("as_a_user")
def test_errors(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_masks_combine_with_masks_only():
    with pytest.raises(TypeError, match="masks combine with masks, got Causal and Tensor"):
        masks.Causal() & torch.ones(3, 3)


def test_queries_before_the_first_key_are_in_no_document():
    table = masks.Document(torch.tensor([0, 1, 1])).dense(5, 3)[0, 0]
    assert not table[:2].any()
    assert torch.equal(table[2:], masks.Document(torch.tensor([0, 1, 1])).dense(3)[0, 0])


@pytest.mark.parametrize(
    "mask, batch, match",
    [
        (masks.Document(torch.zeros(3, 5, dtype=torch.int)), 1, r"ids of shape \(3, 5\), which does not fit 1 sequences of 5 keys"),
        (masks.Document(torch.zeros(4, dtype=torch.int)), 1, "does not fit 1 sequences of 5 keys"),
        (masks.Prefix(torch.tensor([1, 2, 3])), 2, "lengths for 3 sequences, the batch has 2"),
        (masks.Neighborhood1d(4, 2), 1, "made for length=4, got 5 keys"),
        (~masks.Neighborhood2d(2, 2, 1) | masks.Causal(), 1, "made for 2 x 2 positions, got 5 keys"),
    ],
)
def test_masks_that_do_not_fit(mask, batch, match):
    with pytest.raises(ValueError, match=match):
        mask.dense(5, batch=batch)
    x = torch.randn(batch, 1, 5, 4)
    with pytest.raises(ValueError, match=match):
        attention(x, x, x, mask=mask)


def test_rules_are_boolean():
    class Soft(masks.Mask):
        def rule(self, b, h, q, k):
            return (q - k) * 0.5

    with pytest.raises(ValueError, match="rule of Soft must be boolean"):
        Soft().dense(3)
