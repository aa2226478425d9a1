"""``mhlib.attention(backend="triton")`` and the layers above it compute what the reference computes."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.common import DEVICE, ON_GPU

from mhlib import attention, kernels, masks
from mhlib.functional.attention import _choose
from mhlib.functional.normalizers import sink_softmax, softmax
from mhlib.functional.ragged import ragged_attention
from mhlib.functional.request import Request
from mhlib.heads import MultiHeadAttention, MultiHeadLatentAttention, PackedEncoderLayer


def make(*shape, grad=True):
    return torch.randn(*shape, device=DEVICE).requires_grad_(grad)


def tensors(queries=19, keys=23, heads=4, kv_heads=2, dim=16, width=16):
    return make(2, heads, queries, dim), make(2, kv_heads, keys, dim), make(2, kv_heads, keys, width)


MASKS = {
    "none": lambda keys: None,
    "keys": lambda keys: torch.rand(2, 1, 1, keys, device=DEVICE) > 0.3,
    "keys of all": lambda keys: torch.rand(1, 1, 1, keys, device=DEVICE) > 0.3,
    "one for all keys": lambda keys: torch.tensor([True, False], device=DEVICE).view(2, 1, 1, 1),
    "causal": lambda keys: masks.Causal(),
    "sliding": lambda keys: masks.SlidingWindow(5, 2),
}


@settings(max_examples=10, deadline=None)
@given(
    mask=st.sampled_from(sorted(MASKS)),
    queries=st.integers(1, 20),
    keys=st.integers(1, 24),
    causal=st.booleans(),
    window=st.sampled_from([None, 4, (3, None), (None, 6)]),
    normalizer=st.sampled_from(["softmax", "softmax_one", "sink"]),
    scale=st.sampled_from([None, 0.4]),
    seed=st.integers(0, 2**31),
)
def test_it_is_the_reference(mask, queries, keys, causal, window, normalizer, scale, seed):
    torch.manual_seed(seed)
    inputs = list(tensors(queries, keys))
    if normalizer == "sink":
        inputs.append(make(4))
        normalizer = partial(sink_softmax, sink=inputs[-1])
    options = dict(mask=MASKS[mask](keys), causal=causal, window=window, normalizer=normalizer, scale=scale)
    results = []
    for backend in ("reference", "triton"):
        out = attention(*inputs[:3], backend=backend, **options)
        results.append((out, *torch.autograd.grad(out.square().sum(), inputs)))
    for want, got in zip(*results):
        torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "options, reason",
    [
        (dict(mask=torch.ones(2, 1, 19, 23, dtype=torch.bool, device=DEVICE)), "of masks it knows"),
        (dict(mask=masks.Block(4)), "of masks it knows"),
        (dict(mask=~masks.Causal()), "of masks it knows"),
        (dict(bias=torch.zeros(1, 1, 1, 23, device=DEVICE)), "adds no bias"),
        (dict(dropout=0.1), "no dropout"),
        (dict(normalizer="sparsemax"), "needs softmax"),
        (dict(return_weights=True), "never holds the weights"),
    ],
)
def test_what_it_cannot_serve_is_refused(options, reason):
    with pytest.raises(ValueError, match=f"backend 'triton' cannot serve this request: .*{reason}.*; use "):
        attention(*tensors(), backend="triton", **options)


def test_auto_takes_it_on_cuda_alone():
    q, k, v = tensors()
    request = Request(q, k, v, None, None, 1.0, True, (None, None), softmax, 0.0, False)
    assert _choose(request) == ("triton" if ON_GPU else "sdpa")


@pytest.mark.parametrize("options", [dict(causal=True), dict(key_mask="right")], ids=str)
def test_a_layer_reaches_it(options):
    torch.manual_seed(0)
    layer = MultiHeadAttention(32, 2, num_kv_heads=1, backend="triton").to(DEVICE)
    plain = MultiHeadAttention(32, 2, num_kv_heads=1, backend="reference").to(DEVICE)
    plain.load_state_dict(layer.state_dict())
    x = make(2, 13, 32)
    if options.get("key_mask"):
        options = dict(key_mask=torch.arange(13, device=DEVICE) < torch.tensor([[13], [6]], device=DEVICE))
    got, want = layer(x, **options), plain(x, **options)
    torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)
    for a, b in zip(torch.autograd.grad(got.sum(), layer.parameters()), torch.autograd.grad(want.sum(), plain.parameters())):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kernel", ["decode_attention", "latent_decode"])
def test_decoding_step_by_step_is_one_pass(kernel, monkeypatch):
    torch.manual_seed(1)
    if kernel == "latent_decode":
        layer = MultiHeadLatentAttention(32, 4, kv_rank=24, rope_dim=4, execution="absorbed", backend="triton").to(DEVICE)
    else:
        layer = MultiHeadAttention(32, 4, num_kv_heads=2, backend="triton").to(DEVICE)
    x = make(2, 9, 32, grad=False)
    with torch.no_grad():
        layer.backend = "reference"
        whole, cache = layer(x, causal=True), layer.init_cache(2, 9)
        layer.backend, calls = "triton", []
        kept = getattr(kernels, kernel)
        monkeypatch.setattr(kernels, kernel, lambda *args, **options: calls.append(kernel) or kept(*args, **options))
        steps = [layer(x[:, part], causal=True, cache=cache) for part in (slice(0, 5), slice(5, 6), slice(6, 9))]
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=2e-5, rtol=1e-4)
    assert len(calls) == 3


def test_packed_sequences_reach_it():
    torch.manual_seed(2)
    at = torch.tensor([0, 5, 5, 22], device=DEVICE)
    q, k, v = make(4, 22, 16), make(2, 22, 16), make(2, 22, 8)
    got, want = (ragged_attention(q, k, v, at, causal=True, backend=backend) for backend in ("triton", "reference"))
    torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)
    layer = PackedEncoderLayer(32, 2, backend="triton").to(DEVICE)
    plain = PackedEncoderLayer(32, 2, backend="reference").to(DEVICE)
    plain.load_state_dict(layer.state_dict())
    x = make(22, 32)
    torch.testing.assert_close(layer(x, at), plain(x, at), atol=2e-5, rtol=1e-4)


def test_layers_compile_without_a_break():
    run = subprocess.run([sys.executable, Path(__file__).parents[1] / "compile_layers.py"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
