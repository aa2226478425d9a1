"""The contracts of pools: over a set of tokens, ``pool(x, key_mask=None) -> y``, and over the windows of a map."""

import copy

import torch
from contract.common import Check, close, finite, gradcheck, perturbed, raises, tokens

from mhlib.registry import Mechanism


def build(m: Mechanism):
    return perturbed(m.example())


def shapes_and_dtypes(m: Mechanism) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        pool = m.example().to(dtype)
        y = pool(tokens(pool.dim, dtype=dtype))
        assert y.shape[0] == 2 and y.dtype == dtype, f"{dtype} gives {y.dtype} {tuple(y.shape)}"
        finite(y, f"the output in {dtype}")


def lengths(m: Mechanism) -> None:
    pool = build(m)
    shape = pool(tokens(pool.dim)).shape
    for n in (1, 2, 3, 7, 17):
        assert pool(tokens(pool.dim, length=n)).shape == shape, f"the output's shape depends on the number of tokens ({n})"


def gradients(m: Mechanism) -> None:
    pool = build(m)
    x = tokens(pool.dim, length=4)
    if m.gradient == "exact":
        gradcheck(lambda p, x: torch.func.functional_call(pool, p, (x,)), pool, x.clone())
    if m.gradient != "none":
        pool(x.requires_grad_()).square().sum().backward()
        idle = tuple(getattr(pool, "only_in_training", ()))  # noise has no effect in evaluation, and then must have none
        dead = {name for name, p in pool.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0}
        resting = {name for name, _ in pool.named_parameters() if name.startswith(idle)} if idle else set()
        assert resting <= dead, f"only_in_training, but with a gradient in evaluation: {sorted(resting - dead)}"
        if idle:
            pool.zero_grad()
            pool.train()(x).square().sum().backward()
            dead = {name for name, p in pool.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0}
        assert not dead, f"these parameters receive no gradient: {dead}"


def masked_tokens_do_not_matter(m: Mechanism) -> None:
    pool = build(m)
    x, keep = tokens(pool.dim), torch.ones(2, 6, dtype=torch.bool)
    keep[0, 4:] = False
    y = pool(x, key_mask=keep)
    junk = torch.where(keep[..., None], x, 1e3 * torch.randn_like(x))
    close(pool(junk, key_mask=keep), y, "junk in masked tokens changed the output")
    close(pool(x[:1, :4]), y[:1], "masked tokens are not as if absent")


def nothing_to_pool(m: Mechanism) -> None:
    pool = build(m)
    x = tokens(pool.dim).requires_grad_()
    keep = torch.ones(2, 6, dtype=torch.bool)
    keep[1] = False
    y = pool(x, key_mask=keep)
    assert (y[1] == 0).all(), "an all-padding sequence does not pool to zeros"
    if m.gradient != "none":
        gradient = torch.autograd.grad(y.sum(), x)[0]
        finite(gradient, "the gradient")
        assert (gradient[1] == 0).all(), "an all-padding sequence sends back a gradient"


def invariance(m: Mechanism) -> None:
    pool = build(m)
    x, order = tokens(pool.dim), torch.randperm(5).add(1).tolist() + [0]  # no token stays where it was first
    if "invariant" in m.properties:
        close(pool(x[:, order]), pool(x), "permuting the tokens changes the output")


def duplication(m: Mechanism) -> None:
    pool = build(m)
    x = tokens(pool.dim)
    if "duplicable" in m.properties:
        close(pool(x.repeat(1, 2, 1)), pool(x), "holding every token twice changes the output")


def ragged_sets(m: Mechanism) -> None:
    pool = build(m)
    if not hasattr(pool, "ragged"):
        return
    lengths = torch.tensor([3, 1, 5])
    sets = [tokens(pool.dim, batch=1, length=n) for n in lengths.tolist()]
    flat = torch.cat([s[0] for s in sets])
    close(pool.ragged(flat, lengths), torch.cat([pool(s) for s in sets]), "ragged sets differ from single ones")
    raises(ValueError, lambda: pool.ragged(flat, lengths + 1), "9", "12")


def streaming(m: Mechanism) -> None:
    pool = build(m)
    if "streams" not in m.properties:
        return
    x, keep = tokens(pool.dim, length=11), torch.rand(2, 11) > 0.3
    keep[:, 0] = True
    state = pool.start(2, x)
    sizes = [t.numel() for t in state]
    for piece in torch.arange(11).tensor_split([0, 3, 3, 7]):  # two of them without a token
        state = pool.update(state, x[:, piece], keep[:, piece])
    assert [t.numel() for t in state] == sizes, "the state grows with the tokens"
    close(pool.finish(state), pool(x, key_mask=keep), "pieces give another result than the whole")
    nothing = pool.finish(pool.update(pool.start(2, x), x, torch.zeros(2, 11, dtype=torch.bool)))
    assert (nothing == 0).all(), "a stream without a token does not pool to zeros"


def reports(m: Mechanism) -> None:
    pool = build(m)
    x, keep = tokens(pool.dim), torch.ones(2, 6, dtype=torch.bool)
    keep[0, 4:] = False
    y, aux = pool(x, key_mask=keep, return_aux=True)
    assert isinstance(aux, dict)
    close(pool(x, key_mask=keep), y, "asking for reports changes the output")
    try:
        z, weights = pool(x, key_mask=keep, return_weights=True)
    except ValueError as e:
        assert "no weights" in str(e)
        return
    close(z, y, "asking for weights changes the output")
    assert weights.shape[0] == 2 and weights.shape[-1] == 6, f"weights should be (batch, ..., tokens), got {tuple(weights.shape)}"
    assert (weights[0, ..., 4:] == 0).all(), "a masked token has a weight"


def batch_invariance(m: Mechanism) -> None:
    pool = build(m)
    x = tokens(pool.dim, batch=3)
    close(torch.cat([pool(one) for one in x.split(1)]), pool(x), "a set depends on the others of its batch")


def determinism(m: Mechanism) -> None:
    pool = build(m)
    x = tokens(pool.dim)
    assert torch.equal(pool(x), pool(x)), "two calls differ"


def copies(m: Mechanism) -> None:
    pool = build(m)
    x = tokens(pool.dim)
    fresh = m.example().double().eval()
    fresh.load_state_dict(pool.state_dict())
    close(fresh(x), pool(x), "the state dict does not hold everything")
    close(copy.deepcopy(pool)(x), pool(x), "a deep copy differs")


def strides(m: Mechanism) -> None:
    pool = build(m)
    strided = torch.randn(2, pool.dim, 12, dtype=torch.float64).transpose(1, 2)[:, ::2]
    close(pool(strided), pool(strided.contiguous()), "a non-contiguous input gives another output")


def huge_inputs(m: Mechanism) -> None:
    pool = m.example().eval()
    x = 1e4 * tokens(pool.dim, dtype=torch.float32)
    x.requires_grad_()
    y = pool(x)
    finite([y, *(torch.autograd.grad(y.sum(), x) if m.gradient != "none" else ())], "output or gradient for huge inputs")


def autocast(m: Mechanism) -> None:
    pool = m.example().eval()
    x = tokens(pool.dim, dtype=torch.float32).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = pool(x)
    assert y.shape == pool(x).shape
    finite([y, *(torch.autograd.grad(y.sum(), x) if m.gradient != "none" else ())], "output or gradient under autocast")


def bad_input(m: Mechanism) -> None:
    pool = m.example()
    x = tokens(pool.dim, dtype=torch.float32)
    raises(ValueError, lambda: pool(x[0]), str(tuple(x[0].shape)))
    raises(ValueError, lambda: pool(x, key_mask=torch.ones(2, 6)), "key_mask", "boolean", "float32")
    raises(ValueError, lambda: pool(x, key_mask=[[True] * 6] * 2), "key_mask", "boolean", "list")
    raises(ValueError, lambda: pool(x, key_mask=torch.ones(2, 5, dtype=torch.bool)), "(2, 6)", "(2, 5)")


CHECKS: list[Check] = [
    shapes_and_dtypes, lengths, gradients, masked_tokens_do_not_matter, nothing_to_pool, invariance, duplication, ragged_sets,
    streaming, reports, batch_invariance, determinism, copies, strides, huge_inputs, autocast, bad_input,
]  # fmt: skip


def _map(pool, **options) -> torch.Tensor:
    return torch.randn(2, getattr(pool, "channels", 3), 8, 8, dtype=torch.float64, **options)


def window_shapes_and_dtypes(m: Mechanism) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        pool = m.example().to(dtype)
        y = pool(_map(pool).to(dtype))
        assert y.ndim == 4 and y.shape[:2] == _map(pool).shape[:2] and y.dtype == dtype
        assert y.shape[2] <= 8 and y.shape[3] <= 8, "a window pool must not enlarge its map"
        finite(y, f"the output in {dtype}")


def window_gradients(m: Mechanism) -> None:
    pool = build(m)
    if m.gradient == "exact":
        gradcheck(lambda p, x: torch.func.functional_call(pool, p, (x,)), pool, _map(pool))


def window_constants(m: Mechanism) -> None:
    pool = build(m)
    x = torch.full_like(_map(pool), 0.7)
    y = pool(x)
    close(y, y[..., :1, :1].expand_as(y), "a constant map pools to different numbers")


def window_batch_invariance(m: Mechanism) -> None:
    pool = build(m)
    x = _map(pool)
    close(torch.cat([pool(one) for one in x.split(1)]), pool(x), "a map depends on the others of its batch")
    assert torch.equal(pool(x), pool(x)), "two calls differ"


def window_bad_input(m: Mechanism) -> None:
    pool = m.example()
    raises(ValueError, lambda: pool(torch.zeros(8, 8)), "(8, 8)")


WINDOW_CHECKS: list[Check] = [
    window_shapes_and_dtypes, window_gradients, window_constants, window_batch_invariance, window_bad_input,
]  # fmt: skip
