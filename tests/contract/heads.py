"""The contract of a head: a layer ``head(x, context=None, *, key_mask, mask, causal, cache, ...)`` over tokens."""

import copy

import torch
from torch.utils.flop_counter import FlopCounterMode

from contract.common import Check, close, finite, gradcheck, perturbed, raises, tokens
from mhlib import cost
from mhlib.registry import Mechanism


def build(m: Mechanism):
    return perturbed(m.example())


def shapes_and_dtypes(m: Mechanism) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        head = m.example().to(dtype)
        y = head(tokens(head.dim, dtype=dtype))
        assert y.shape == (2, 6, head.dim) and y.dtype == dtype, f"{dtype} gives {y.dtype} {tuple(y.shape)}"
        finite(y, f"the output in {dtype}")


def lengths(m: Mechanism) -> None:
    head = build(m)
    for n in (1, 2, 3, 7, 17):
        assert head(tokens(head.dim, length=n)).shape == (2, n, head.dim), f"{n} tokens"


def gradients(m: Mechanism) -> None:
    head = build(m)
    x = tokens(head.dim, length=4)
    if m.gradient == "exact":
        causal = "causal" in m.properties
        call = lambda p, x: torch.func.functional_call(head, p, (x,), {"causal": causal})  # noqa: E731
        gradcheck(call, head, x.clone())
    if m.gradient != "none":
        head(x).square().sum().backward()
        dead = [name for name, p in head.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
        assert not dead, f"these parameters receive no gradient: {dead}"


def masked_tokens_do_not_matter(m: Mechanism) -> None:
    head = build(m)
    x, keep = tokens(head.dim), torch.ones(2, 6, dtype=torch.bool)
    keep[0, 4:], keep[1, 1] = False, False
    y = head(x, key_mask=keep)
    junk = torch.where(keep[..., None], x, 1e3 * torch.randn_like(x))
    close(head(junk, key_mask=keep)[keep], y[keep], "junk in masked tokens changed the output of real ones")
    close(head(x[:1, :4]), y[:1, :4], "masked tokens are not as if absent")
    if "causal" in m.properties:
        close(
            head(junk, key_mask=keep, causal=True)[keep],
            head(x, key_mask=keep, causal=True)[keep],
            "junk in masked tokens changed the causal output",
        )


def nothing_to_attend_to(m: Mechanism) -> None:
    head = build(m)
    x = tokens(head.dim).requires_grad_()
    keep = torch.ones(2, 6, dtype=torch.bool)
    keep[1] = False
    y = head(x, key_mask=keep)
    y.sum().backward()
    finite([y, x.grad, *(p.grad for p in head.parameters() if p.grad is not None)], "output or gradient of an all-masked sequence")


def pair_masks(m: Mechanism) -> None:
    head = build(m)
    x = tokens(head.dim)
    own = torch.eye(6, dtype=torch.bool)[None, None]
    alone = torch.cat([head(x[:, i : i + 1]) for i in range(6)], 1) if m.properties >= {"equivariant"} else None
    y = head(x, mask=own)
    finite(y, "the output under a mask")
    if alone is not None:
        close(y, alone, "a token that sees only itself is not as if alone")


def causality(m: Mechanism) -> None:
    head = build(m)
    x = tokens(head.dim)
    if "causal" not in m.properties:
        raises(ValueError, lambda: head(x, causal=True), "causal")
        return
    later = torch.cat([x[:, :3], torch.randn_like(x[:, 3:])], 1)
    y, z = head(x, causal=True), head(later, causal=True)
    close(z[:, :3], y[:, :3], "a later token changed an earlier output")
    assert not torch.allclose(z[:, 3:], y[:, 3:]), "the output does not depend on the tokens"
    _, weights = head(x, causal=True, return_weights=True)
    if weights is not None and weights.shape[-2:] == (6, 6):
        assert (weights.triu(1) == 0).all(), "a weight looks ahead"


def equivariance(m: Mechanism) -> None:
    if "equivariant" not in m.properties:
        return
    head = build(m)
    x, order = tokens(head.dim), torch.randperm(6)
    close(head(x[:, order]), head(x)[:, order], "permuting the tokens does not permute the output")


def batch_invariance(m: Mechanism) -> None:
    head = build(m)
    x = tokens(head.dim, batch=3)
    close(torch.cat([head(one) for one in x.split(1)]), head(x), "a sequence depends on the others of its batch")


def determinism(m: Mechanism) -> None:
    head = build(m)
    x = tokens(head.dim)
    assert torch.equal(head(x), head(x)), "two calls differ"


def weights_and_output_agree(m: Mechanism) -> None:
    head = build(m)
    x = tokens(head.dim)
    for causal in (False, True) if "causal" in m.properties else (False,):
        y, aux = head(x, causal=causal, return_aux=True)
        assert isinstance(aux, dict)
        z, _ = head(x, causal=causal, return_weights=True)
        close(z, y, "asking for weights changes the output")


def copies(m: Mechanism) -> None:
    head = build(m)
    x = tokens(head.dim)
    fresh = m.example().double().eval()
    fresh.load_state_dict(head.state_dict())
    close(fresh(x), head(x), "the state dict does not hold everything")
    head(x)
    close(copy.deepcopy(head)(x), head(x), "a deep copy differs")


def strides(m: Mechanism) -> None:
    head = build(m)
    x = tokens(head.dim)
    strided = torch.randn(2, head.dim, 12, dtype=x.dtype).transpose(1, 2)[:, ::2]
    close(head(strided), head(strided.contiguous()), "a non-contiguous input gives another output")


def huge_inputs(m: Mechanism) -> None:
    head = m.example().eval()
    x = 1e4 * tokens(head.dim, dtype=torch.float32)
    x.requires_grad_()
    y = head(x)
    finite([y, *torch.autograd.grad(y.sum(), x)], "output or gradient for huge inputs")


def decoding(m: Mechanism) -> None:
    head = build(m)
    x = tokens(head.dim, length=7)
    if "decodes" not in m.properties:
        raises((ValueError, NotImplementedError), lambda: head.init_cache(2, 7), "decod")
        return
    with torch.no_grad():
        y = head(x, causal=True)
        for first in (1, 3):
            cache = head.init_cache(2, 7)
            steps = [head(x[:, :first], causal=True, cache=cache)]
            steps += [head(x[:, i : i + 1], causal=True, cache=cache) for i in range(first, 7)]
            close(torch.cat(steps, 1), y, f"prefill of {first} and decoding is not one pass")
        assert cache.bytes > 0 and cache.length == 7
        cache.reset()
        close(head(x[:, :4], causal=True, cache=cache), y[:, :4], "a reset cache remembers")
        keep = torch.ones(2, 7, dtype=torch.bool)
        keep[0, :2] = False  # padded on the left
        cache = head.init_cache(2, 7)
        steps = [head(x[:, :3], causal=True, cache=cache, key_mask=keep[:, :3])]
        steps += [head(x[:, i : i + 1], causal=True, cache=cache, key_mask=keep[:, : i + 1]) for i in range(3, 7)]
        close(torch.cat(steps, 1)[keep], head(x, causal=True, key_mask=keep)[keep], "decoding with padding on the left")


def autocast(m: Mechanism) -> None:
    head = m.example().eval()
    x = tokens(head.dim, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = head(x)
        assert y.shape == x.shape
        finite(y, "the output under autocast")
        if "decodes" in m.properties:
            with torch.no_grad():
                cache = head.init_cache(2, 6)
                steps = [head(piece, causal=True, cache=cache) for piece in (x[:, :4], x[:, 4:])]
            close(torch.cat(steps, 1).float(), head(x, causal=True).detach().float(), "decoding under autocast", 0.1)
    y.sum().backward()
    finite([p.grad for p in head.parameters() if p.grad is not None], "the gradients under autocast")


def counted_costs(m: Mechanism) -> None:
    head = m.example().eval()
    for n in (4, 9):
        counted = cost.of(head, queries=n, batch=2)
        parameters = sum(p.numel() for p in head.parameters())
        assert counted.parameters == parameters, f"cost counts {counted.parameters} parameters, there are {parameters}"
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            head(tokens(head.dim, length=n, dtype=torch.float32), return_weights=True)
        total = counter.get_total_flops()
        assert counted.matmul_flops == total, f"cost counts {counted.matmul_flops} FLOPs, torch counts {total}"
    if "decodes" in m.properties and hasattr(head.init_cache(1, 4), "bytes_per_token"):
        cache = head.init_cache(1, 4)
        assert cost.cache_bytes_per_token(head, dtype=torch.float32) == cache.bytes_per_token
        assert cache.bytes == 4 * cache.bytes_per_token


def bad_input(m: Mechanism) -> None:
    head = m.example()
    x = tokens(head.dim, dtype=torch.float32)
    raises(ValueError, lambda: head(x[0]), str(head.dim), str(tuple(x[0].shape)))
    raises(ValueError, lambda: head(x[..., :-1]), str(head.dim), str(tuple(x[..., :-1].shape)))
    raises(ValueError, lambda: head(x, key_mask=torch.ones(2, 6)), "key_mask", "boolean", "float32")
    raises(ValueError, lambda: head(x, key_mask=torch.ones(2, 5, dtype=torch.bool)), "(2, 6)", "(2, 5)")
    raises(ValueError, lambda: head(x, mask=torch.ones(6, 6, dtype=torch.bool)), "(6, 6)")
    raises(TypeError, lambda: head(x, casual=True), "casual")


CHECKS: list[Check] = [
    shapes_and_dtypes, lengths, gradients, masked_tokens_do_not_matter, nothing_to_attend_to, pair_masks, causality,
    equivariance, batch_invariance, determinism, weights_and_output_agree, copies, strides, huge_inputs, decoding,
    autocast, counted_costs, bad_input,
]  # fmt: skip
