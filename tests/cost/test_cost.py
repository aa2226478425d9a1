"""Costs: the papers' closed forms, decoding, rooflines, and the four orders of latent attention."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mhlib import cost
from mhlib.analysis import DEEPSEEK_V3, ORDERS, best_order, dense_intensity, latent_order_cost, latent_orders, per_cached_token
from mhlib.heads import GroupedQueryAttention, MultiHeadAttention, MultiHeadLatentAttention, MultiQueryAttention


def test_decoding_intensity_of_plain_and_shared_heads():
    """Per cached number, multi-head attention does one FLOP per byte in 16 bits; sharing multiplies it by H / G."""
    for groups in (32, 8, 1):
        make = lambda groups=groups: GroupedQueryAttention(4096, 32, num_kv_heads=groups)  # noqa: E731
        assert cost.decode(make, 100_000).core.intensity == pytest.approx(32 / groups, rel=0.01)
    assert cost.cache_bytes_per_token(lambda: MultiQueryAttention(4096, 32)) == 2 * 128 * 2


def test_deepseek_v3_numbers_of_row_34():
    make = lambda: MultiHeadLatentAttention(7168, 128, head_dim=128, kv_rank=512, q_rank=1536, rope_dim=64)  # noqa: E731
    assert cost.cache_bytes_per_token(make) == 1152
    one = per_cached_token(num_heads=128, kv_rank=512, rope_dim=64)
    assert (one.flops, one.bytes) == (278_528, 1152) and one.intensity == pytest.approx(241.8, abs=0.05)
    assert cost.decode(make, 10**6).core.intensity == pytest.approx(one.intensity, rel=0.01)
    assert per_cached_token(num_heads=128, head_dim=128).bytes == 65_536


def test_decoding_costs_are_counted_on_the_cached_path():
    """The FLOPs of one real decoding step, by torch's counter; two queries, for it does not see matrix-vector products."""
    for layer in (
        MultiHeadAttention(32, 4),
        GroupedQueryAttention(32, 4, num_kv_heads=2),
        MultiHeadLatentAttention(32, 4, kv_rank=12, q_rank=8, rope_dim=2, execution="absorbed"),
        MultiHeadLatentAttention(32, 4, kv_rank=12, rope_dim=2, execution="expanded"),
    ):
        cache = layer.init_cache(1, 12)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            layer(torch.randn(1, 10, 32), cache=cache, return_weights=True)
            before = counter.get_total_flops()
            layer(torch.randn(1, 2, 32), cache=cache, return_weights=True)
        step = cost.of(layer, queries=2, keys=12, cached=True)
        assert step.matmul_flops == counter.get_total_flops() - before, type(layer).__name__


def test_context_of_its_own_is_counted():
    layer = MultiHeadAttention(32, 4, context_dim=20)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer(torch.randn(1, 5, 32), torch.randn(1, 9, 20), return_weights=True)
    assert cost.of(layer, queries=5, keys=9).matmul_flops == counter.get_total_flops()


def test_meta_device_counts_without_memory():
    huge = cost.prefill(lambda: MultiHeadAttention(65536, 512), 4)
    assert huge.parameters == 4 * 65536**2


def test_roofline():
    h100 = cost.roofline("H100")
    assert h100.ridge == pytest.approx(295, abs=0.5)
    assert h100.attainable(1.0) == h100.bandwidth and h100.attainable(1e6) == h100.flops
    make = lambda: MultiHeadAttention(4096, 32)  # noqa: E731
    decode, prefill = cost.decode(make, 8192), cost.prefill(make, 8192)
    assert h100.bound(decode) == "memory" and h100.bound(prefill) == "compute"
    assert h100.seconds(decode) == decode.bytes / h100.bandwidth
    assert h100.seconds(prefill) == prefill.matmul_flops / h100.flops
    with pytest.raises(ValueError, match="device must be one of V100, .*got 'H1000'"):
        cost.roofline("H1000")


def test_orders_cost_what_row_89_says():
    s, L = DEEPSEEK_V3, 4096
    costs = {order: latent_order_cost(order, s, L) for order in ORDERS}
    absorb = {order: c.stages["absorb"] for order, c in costs.items()}
    assert absorb["reuse"].parameters == 128 * 1536 * 512 and absorb["recompute"].parameters == 128 * 128 * (1536 + 512)
    # recompute moves fewer weights than reuse exactly when d_n (r_q + r_kv) < r_q r_kv
    assert 128 * (1536 + 512) < 1536 * 512 and costs["recompute"].bytes < costs["reuse"].bytes
    assert costs["sequential"].matmul_flops < costs["reuse"].matmul_flops < costs["recompute"].matmul_flops
    assert costs["naive"].matmul_flops > 10 * costs["sequential"].matmul_flops
    assert costs["reuse"].cache_bytes_per_token == 2 * 576
    attend = costs["sequential"].stages["attend"]
    assert attend.matmul_flops / (2 * attend.moved) == pytest.approx(241.8, abs=0.05)


def test_orders_are_counted_as_they_run():
    from mhlib.analysis import LatentShape

    layer = MultiHeadLatentAttention(32, 4, head_dim=8, kv_rank=12, q_rank=10, rope_dim=4)
    shape = LatentShape(32, 4, 8, 4, 8, 10, 12)
    tokens = torch.randn(2, 9, 32)
    for order in ORDERS:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            latent_orders(layer, tokens, order=order)
        counted = latent_order_cost(order, shape, 9, batch=2).matmul_flops
        # The run also projects the eight tokens that a cache would hold, and makes the product that reuse would keep.
        counted += 2 * 2 * 8 * 32 * (12 + 4) + (2 * 4 * 10 * 12 * 8 if order == "reuse" else 0)
        assert counter.get_total_flops() == counted, order


def test_the_best_order_depends_on_the_machine():
    assert best_order(DEEPSEEK_V3, 4096, ridge=1.0) == "sequential"
    assert {best_order(DEEPSEEK_V3, 4096, ridge=10.0**e) for e in range(4)} <= set(ORDERS)


def test_dense_layers_become_compute_bound_with_the_batch():
    assert dense_intensity(1, 4096, 4096) == pytest.approx(1, abs=0.01)
    assert dense_intensity(10**9, 4096, 4096) == pytest.approx(2048, rel=0.01)


@pytest.mark.parametrize(
    "call, match",
    [
        (lambda: cost.of(torch.nn.Linear(2, 2), queries=1), "Linear has no stage_costs"),
        (lambda: cost.of(MultiHeadAttention(8, 2), queries=5, keys=3, cached=True), "got queries=5, keys=3"),
        (lambda: cost.of(MultiHeadAttention(8, 2), queries=-3), "must be at least 1, got queries=-3, keys=-3, batch=1"),
        (lambda: cost.prefill(MultiHeadAttention(8, 2), 4, batch=0), "got queries=4, keys=4, batch=0"),
        (lambda: per_cached_token(num_heads=3), "give head_dim .* or kv_rank"),
        (lambda: latent_order_cost("fast", DEEPSEEK_V3, 1), "order must be one of naive, reuse"),
    ],
)
def test_errors(call, match):
    with pytest.raises(ValueError, match=match):
        call()
