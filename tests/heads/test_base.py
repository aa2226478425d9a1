"""The base layer: which path runs, positions, contexts, caches, errors."""

import pytest
import torch

from mhlib.functional.positions import ALiBi, RelativePositionBias, Rotary
from mhlib.heads import GroupedQueryAttention, KVCache, MultiHeadAttention
from mhlib.masks import Causal, SlidingWindow


def layer(cls=MultiHeadAttention, **options):
    return cls(16, 4, **options).double().eval()


@pytest.fixture
def x():
    return torch.randn(2, 6, 16, dtype=torch.float64)


class Doubled(MultiHeadAttention):
    """Overrides a stage, so the fused path no longer speaks for it."""

    def score(self, q, k, call):
        return 2 * super().score(q, k, call)


class DoubledFused(Doubled):
    """Gives its own fast form of the overridden stage."""

    def fused(self, q, k, v, mask, call):
        return super().fused(2 * q, k, v, mask, call)


class TripledAgain(DoubledFused):
    """Overrides a stage below the fast form, which is out of date again."""

    def score(self, q, k, call):
        return 1.5 * super().score(q, k, call)


class OtherMerge(DoubledFused):
    def merge(self, heads, call):
        return -super().merge(heads, call)


def test_the_fused_path_runs_exactly_when_it_speaks_for_the_class(x, monkeypatch):
    used = []
    fused = MultiHeadAttention.fused
    monkeypatch.setattr(MultiHeadAttention, "fused", lambda self, *a: used.append(type(self)) or fused(self, *a))
    for cls in (MultiHeadAttention, Doubled, DoubledFused, TripledAgain, OtherMerge):
        net = layer(cls)
        torch.testing.assert_close(net(x), net(x, return_weights=True)[0])
    assert used == [MultiHeadAttention, DoubledFused, OtherMerge]


@pytest.mark.parametrize(
    "options",
    [
        dict(rope=Rotary(4)),
        dict(rope=Rotary(2, interleaved=True)),
        dict(position_bias=ALiBi(4)),
        dict(position_bias=RelativePositionBias(4, num_buckets=8, max_distance=6, causal=True)),
        dict(head_dim=6, v_head_dim=3, bias=True),
    ],
    ids=str,
)
def test_options_decode_as_in_one_pass(options, x):
    net = layer(**options)
    with torch.no_grad():
        for p in net.parameters():
            p += 0.1 * torch.randn_like(p)
        cache = net.init_cache(2, 6)
        steps = [net(x[:, i : i + 2], causal=True, cache=cache) for i in range(0, 6, 2)]
        torch.testing.assert_close(torch.cat(steps, 1), net(x, causal=True))
        torch.testing.assert_close(net(x, causal=True, return_weights=True)[0], net(x, causal=True))


def test_rotary_attention_depends_on_distance_alone(x):
    net = layer(rope=Rotary(4))
    alone = net(x[:, 2:], causal=True)
    keep = torch.tensor([[False] * 2 + [True] * 4]).expand(2, -1)
    torch.testing.assert_close(net(x, causal=True, key_mask=keep)[:, 2:], alone)


def test_context_of_another_width(x):
    net = layer(context_dim=10)
    context = torch.randn(2, 9, 10, dtype=torch.float64)
    y, weights = net(x, context, return_weights=True)
    assert y.shape == x.shape and weights.shape == (2, 4, 6, 9)
    torch.testing.assert_close(net(x, context), y)


def test_dropout_acts_in_training_only(x):
    net = layer(dropout=0.5)
    assert torch.equal(net(x), net(x))
    net.train()
    assert not torch.equal(net(x), net(x))
    _, weights = net(x, return_weights=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 6, dtype=x.dtype))  # reported before dropout


def test_cache_knows_its_bytes_and_its_room(x):
    net = layer(GroupedQueryAttention, num_kv_heads=2)
    cache = net.init_cache(2, 8, dtype=torch.bfloat16)
    assert isinstance(cache, KVCache)
    assert cache.bytes_per_token == 2 * (2 * 4) * 2 and cache.bytes == 2 * 8 * cache.bytes_per_token
    cache = net.init_cache(2, 8)
    with torch.no_grad():
        net(x, cache=cache)
        with pytest.raises(ValueError, match="room for 8 tokens and holds 6; 6 more do not fit"):
            net(x, cache=cache)
        with pytest.raises(ValueError, match="made for batch 2, got batch 1"):
            net(x[:1, :1], cache=cache)
    with pytest.raises(ValueError, match="keeps no gradients.*no_grad"):
        net(x[:, :1], cache=cache)


def test_cache_reorders_for_beam_search(x):
    net = layer()
    with torch.no_grad():
        a, b = net.init_cache(2, 6), net.init_cache(2, 6)
        net(x[:, :5], causal=True, cache=a)
        net(x[[1, 1], :5], causal=True, cache=b)
        a.reorder(torch.tensor([1, 1]))
        torch.testing.assert_close(net(x[:, 5:], causal=True, cache=a), net(x[:, 5:], causal=True, cache=b))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_cache_may_have_another_dtype_than_the_tokens(x, dtype):
    net = layer()
    with torch.no_grad():
        cache = net.init_cache(2, 6, dtype=dtype)
        steps = [net(x[:, i : i + 2], causal=True, cache=cache) for i in range(0, 6, 2)]
        assert cache.tensors[0].dtype == dtype and steps[0].dtype == x.dtype
        precision = torch.finfo(dtype).eps
        torch.testing.assert_close(torch.cat(steps, 1), net(x, causal=True), atol=8 * precision, rtol=8 * precision)


def test_a_call_that_fails_leaves_the_cache_as_it_was(x):
    class Fails(MultiHeadAttention):
        def merge(self, heads, call):
            if call.grid:
                raise RuntimeError("after append")
            return super().merge(heads, call)

    net = layer(Fails)
    with torch.no_grad():
        cache = net.init_cache(2, 6)
        net(x[:, :4], causal=True, cache=cache)
        with pytest.raises(RuntimeError, match="after append"):
            net(x[:, :2], causal=True, cache=cache, grid=(1, 2))
        assert cache.length == 4
        torch.testing.assert_close(net(x[:, 4:], causal=True, cache=cache), net(x, causal=True)[:, 4:])


@pytest.mark.usefixtures("as_a_user")
def test_a_cache_refuses_what_is_not_for_it(x):
    net, shared = layer(), layer(GroupedQueryAttention, num_kv_heads=1)
    cache = net.init_cache(2, 6)
    text = r"made for \(heads, width\) \[\(4, 4\), \(4, 4\)\], got \[\(1, 4\), \(1, 4\)\]; use the layer's own"
    with torch.no_grad(), pytest.raises(ValueError, match=text):
        shared(x, cache=cache)
    assert cache.length == 0
    with pytest.raises(ValueError, match="room for at least one token, got batch=2, max_len=0"):
        net.init_cache(2, 0)
    with pytest.raises(ValueError, match="keeps floats: torch.int8 would cut.*; use bfloat16"):
        net.init_cache(2, 6, dtype=torch.int8)
    for index in (torch.tensor([1]), torch.tensor([0.0, 1.0]), torch.tensor([True, False])):
        with pytest.raises(ValueError, match=r"one of the cache's 2 sequences for each of them: \(2,\) whole numbers, got"):
            cache.reorder(index)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize(
    "options, match",
    [
        (dict(dim=15, num_heads=4), "num_heads must divide dim, got dim=15, num_heads=4; or give head_dim"),
        (dict(dim=16, num_heads=0), "must be positive, got dim=16, num_heads=0"),
        (dict(dim=16, num_heads=4, num_kv_heads=3), "num_kv_heads must divide num_heads, got num_kv_heads=3"),
        (dict(dim=16, num_heads=4, head_dim=0), "head_dim must be at least 1, got 0"),
        (dict(dim=16, num_heads=4, dropout=1.0), r"dropout is a probability in \[0, 1\), got 1.0"),
        (dict(dim=16, num_heads=4, dropout=-0.1), r"dropout is a probability in \[0, 1\), got -0.1"),
        (dict(dim=16, num_heads=4, backend="fast"), "backend must be 'auto' or one of reference, .*got 'fast'"),
        (dict(dim=16, num_heads=4, rope=Rotary(6)), "rope turns 6 numbers of a head, which has 4"),
        (
            dict(dim=16, num_heads=4, num_kv_heads=2, rope=Rotary(2, frequencies=((1.0,),) * 4)),
            "frequencies for 4 heads, which must divide the 4 query heads and the 2 key heads",
        ),
    ],
)
def test_sizes_that_do_not_fit(options, match):
    with pytest.raises(ValueError, match=match):
        MultiHeadAttention(**options)


@pytest.mark.usefixtures("as_a_user")
def test_rope_is_a_rotary_embedding():
    with pytest.raises(TypeError, match="rope must be a mhlib.functional.Rotary or None, got 10000"):
        MultiHeadAttention(16, 4, rope=10000)


@pytest.mark.parametrize("cls", [MultiHeadAttention, Doubled])
def test_a_rule_as_mask_is_its_table(x, cls):
    net, keep = layer(cls), torch.rand(2, 6) > 0.3
    torch.testing.assert_close(net(x, mask=Causal()), net(x, causal=True))
    near = SlidingWindow(3)
    torch.testing.assert_close(net(x, mask=near, key_mask=keep), net(x, mask=near.dense(6), key_mask=keep))
    with torch.no_grad():
        cache = net.init_cache(2, 6)
        steps = [net(x[:, i : i + 2], mask=Causal() & near, cache=cache) for i in range(0, 6, 2)]
    torch.testing.assert_close(torch.cat(steps, 1), net(x, mask=near, causal=True))


@pytest.mark.usefixtures("as_a_user")
def test_a_mask_must_be_a_tensor_or_a_rule(x):
    with pytest.raises(ValueError, match="mask must be a boolean tensor .*got list"):
        layer()(x, mask=[[True]])


@pytest.mark.usefixtures("as_a_user")
def test_batches_must_agree(x):
    with pytest.raises(ValueError, match=r"same batch size, got \(2, 6, 16\) and \(1, 6, 16\)"):
        layer()(x, x[:1])
