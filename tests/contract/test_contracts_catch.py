"""The contracts themselves: each check must reject a mechanism with the fault that it is there to find."""

from dataclasses import replace

import pytest
import torch
from contract import heads, others, pools
from torch import nn

from mhlib.heads import MultiHeadAttention
from mhlib.pooling import MeanPool
from mhlib.registry import Example, Mechanism

PROMISES = frozenset({"causal", "decodes", "equivariant"})
POOL_PROMISES = frozenset({"invariant", "duplicable"})


def head(cls, **changes) -> Mechanism:
    plain = Mechanism("faulty", "head", "core", "", (), PROMISES, "exact", lambda: cls(16, 4), (), (), cls)
    return replace(plain, **changes)


class Float64(MultiHeadAttention):
    def merge(self, heads, call):
        return super().merge(heads, call).double()


class OneTokenFails(MultiHeadAttention):
    def merge(self, heads, call):
        return super().merge(heads, call)[:, : max(1, call.x.shape[1] - 1)]


class Detached(MultiHeadAttention):
    def score(self, q, k, call):
        return super().score(q, k.detach(), call)


class IgnoresMask(MultiHeadAttention):
    def select(self, q, k, call):
        return None


class NaNs(MultiHeadAttention):
    def normalize(self, logits, mask, call):
        return logits.softmax(-1) if mask is None else logits.masked_fill(~mask, float("-inf")).softmax(-1)


class LooksAhead(MultiHeadAttention):
    def attend(self, q, k, v, mask, call):
        call.causal = False
        return super().attend(q, k, v, mask, call)


class KnowsPositions(MultiHeadAttention):
    def project(self, x, context, call):
        q, kv = super().project(x + call.q_pos[:, None], context, call)
        return q, kv


class MixesBatch(MultiHeadAttention):
    def merge(self, heads, call):
        return super().merge(heads - heads.mean(0, keepdim=True), call)


class Random(MultiHeadAttention):
    def merge(self, heads, call):
        return super().merge(heads * torch.rand_like(heads), call)


class Remembers(MultiHeadAttention):
    def merge(self, heads, call):
        self.last = heads  # breaks deepcopy
        return super().merge(heads, call)


class OtherFused(MultiHeadAttention):
    def fused(self, q, k, v, mask, call):
        return super().fused(q * 1.01, k, v, mask, call)


class Overflows(MultiHeadAttention):
    def normalize(self, logits, mask, call):
        weights = logits.exp() if mask is None else logits.exp() * mask
        return weights / weights.sum(-1, keepdim=True)


class StaleCache(MultiHeadAttention):
    def update(self, kv, call):
        kv = super().update(kv, call)
        return kv if call.cache is None or call.keys == call.x.shape[1] else tuple(t[:, :, :-1].repeat(1, 1, 2, 1)[:, :, : call.keys] for t in kv)


class OneDtypeOnly(MultiHeadAttention):
    def merge(self, heads, call):
        return torch.lerp(call.x, super().merge(heads, call), 1.0)


class Costlier(MultiHeadAttention):
    def make_projections(self, bias):
        super().make_projections(bias)
        self.gate = nn.Parameter(torch.ones(()))

    def merge(self, heads, call):
        return self.gate * super().merge(heads, call)


class TakesAnything(MultiHeadAttention):
    def forward(self, x, *args, casual=None, **kwargs):
        return super().forward(x, *args, **kwargs)


class Strided(MultiHeadAttention):
    def project(self, x, context, call):
        return super().project(x if x.is_contiguous() else -x, context, call)


class SelfMaskBlind(MultiHeadAttention):
    def select(self, q, k, call):
        return None if call.key_mask is None else call.key_mask[:, None, None]


class ForgetsWeights(MultiHeadAttention):
    def make_projections(self, bias):
        super().make_projections(bias)
        self.hidden = torch.rand(())

    def merge(self, heads, call):
        return super().merge(heads * self.hidden, call)


@pytest.mark.parametrize(
    "cls, check",
    [
        (Float64, heads.shapes_and_dtypes),
        (OneTokenFails, heads.lengths),
        (Detached, heads.gradients),
        (IgnoresMask, heads.masked_tokens_do_not_matter),
        (NaNs, heads.nothing_to_attend_to),
        (SelfMaskBlind, heads.pair_masks),
        (LooksAhead, heads.causality),
        (KnowsPositions, heads.equivariance),
        (MixesBatch, heads.batch_invariance),
        (Random, heads.determinism),
        (OtherFused, heads.weights_and_output_agree),
        (Remembers, heads.copies),
        (ForgetsWeights, heads.copies),
        (Strided, heads.strides),
        (Overflows, heads.huge_inputs),
        (StaleCache, heads.decoding),
        (OneDtypeOnly, heads.autocast),
        (Costlier, heads.counted_costs),
        (TakesAnything, heads.bad_input),
    ],
    ids=lambda x: x.__name__,
)
def test_a_faulty_head_is_rejected(cls, check):
    check(head(MultiHeadAttention))
    with pytest.raises((AssertionError, RuntimeError)):
        check(head(cls))


def test_every_check_of_heads_is_shown_to_catch():
    cases = {case[1] for case in test_a_faulty_head_is_rejected.pytestmark[0].args[1]}
    assert cases == set(heads.CHECKS)


@pytest.mark.parametrize("promise, check", [("causal", heads.causality), ("decodes", heads.decoding)])
def test_what_is_not_promised_must_be_refused(promise, check):
    with pytest.raises(AssertionError, match="expected .* but the call went through"):
        check(head(MultiHeadAttention, properties=PROMISES - {promise}))


class Mean(nn.Module):
    """A plain pool, so that the contract has something good to accept."""

    dim = 5

    def forward(self, x, key_mask=None, return_weights=False, return_aux=False):
        if return_weights:
            raise ValueError("a plain mean has no weights")
        y = self.pool(x, key_mask)
        return (y, {}) if return_aux else y

    def pool(self, x, key_mask):
        if x.ndim != 3:
            raise ValueError(f"expected (batch, tokens, dim), got {tuple(x.shape)}")
        if key_mask is None:
            return x.mean(1)
        if not isinstance(key_mask, torch.Tensor) or key_mask.dtype != torch.bool:
            raise ValueError(f"key_mask must be boolean, got {getattr(key_mask, 'dtype', type(key_mask))}")
        if key_mask.shape != x.shape[:2]:
            raise ValueError(f"key_mask must be {tuple(x.shape[:2])}, got {tuple(key_mask.shape)}")
        kept = torch.where(key_mask[..., None], x, 0.0)
        return kept.sum(1) / key_mask.sum(1, keepdim=True).clamp_min(1)


class Unmasked(Mean):
    def pool(self, x, key_mask):
        return super().pool(x, None)


class Last(Mean):
    def pool(self, x, key_mask):
        return super().pool(x, key_mask) + x[:, 0]


class Divides(Mean):
    def pool(self, x, key_mask):
        y = super().pool(x, key_mask)
        return y if key_mask is None else y * (key_mask.sum(1, keepdim=True) / key_mask.sum(1, keepdim=True))


class Noisy(Mean):
    def pool(self, x, key_mask):
        return super().pool(x, key_mask) + torch.rand(())


class Centred(Mean):
    def pool(self, x, key_mask):
        y = super().pool(x, key_mask)
        return y - y.mean(0)


class Counts(Mean):
    def pool(self, x, key_mask):
        return super().pool(x, key_mask) * x.shape[1]


class WeighsPadding(Mean):
    def forward(self, x, key_mask=None, return_weights=False, return_aux=False):
        y = self.pool(x, key_mask)
        return (y, torch.ones(x.shape[:2]) / x.shape[1]) if return_weights else (y, {}) if return_aux else y


class LosesPieces(MeanPool):
    def update(self, state, x, key_mask=None):
        return super().update(self.start(x.shape[0], x), x, key_mask)


class PadsRaggedSets(MeanPool):
    def ragged(self, x, lengths):
        return super().ragged(x, lengths).flip(0)


class Doubles(Mean):
    def pool(self, x, key_mask):
        return super().pool(x, key_mask).double()


class Keeps(Mean):
    def pool(self, x, key_mask):
        return x.flatten(1)


class DetachedMean(Mean):
    def pool(self, x, key_mask):
        return super().pool(x.detach() + 0.5 * (x - x.detach()), key_mask)


class RestsInTrainingToo(Mean):
    only_in_training = ("idle",)

    def __init__(self):
        super().__init__()
        self.idle = nn.Parameter(torch.ones(()))


class NeverRests(RestsInTrainingToo):
    def pool(self, x, key_mask):
        return super().pool(x, key_mask) * self.idle


class Hidden(Mean):
    def __init__(self):
        super().__init__()
        self.factor = torch.rand(())

    def pool(self, x, key_mask):
        return super().pool(x, key_mask) * self.factor


class StridedMean(Mean):
    def pool(self, x, key_mask):
        return super().pool(x if x.is_contiguous() else -x, key_mask)


class OverflowingMean(Mean):
    def pool(self, x, key_mask):
        return super().pool(x.exp(), key_mask).log()


class OneDtypeOnlyMean(Mean):
    def pool(self, x, key_mask):
        y = super().pool(x, key_mask)
        return torch.lerp(y, y @ torch.eye(5, dtype=x.dtype), 0.5)


def pool(cls) -> Mechanism:
    return Mechanism("faulty", "pool", "pool-global", "", (), POOL_PROMISES, "exact", lambda: cls(5) if issubclass(cls, MeanPool) else cls(), (), (), cls)


@pytest.mark.parametrize(
    "cls, check",
    [
        (Doubles, pools.shapes_and_dtypes),
        (Keeps, pools.lengths),
        (DetachedMean, pools.gradients),
        (RestsInTrainingToo, pools.gradients),
        (NeverRests, pools.gradients),
        (Unmasked, pools.masked_tokens_do_not_matter),
        (Unmasked, pools.bad_input),
        (Divides, pools.nothing_to_pool),
        (Last, pools.invariance),
        (Counts, pools.duplication),
        (PadsRaggedSets, pools.ragged_sets),
        (LosesPieces, pools.streaming),
        (WeighsPadding, pools.reports),
        (Centred, pools.batch_invariance),
        (Noisy, pools.determinism),
        (Hidden, pools.copies),
        (StridedMean, pools.strides),
        (OverflowingMean, pools.huge_inputs),
        (OneDtypeOnlyMean, pools.autocast),
    ],
    ids=lambda x: x.__name__,
)
def test_a_faulty_pool_is_rejected(cls, check):
    mechanism = pool(cls)
    if issubclass(cls, LosesPieces):
        mechanism = replace(mechanism, properties=POOL_PROMISES | {"streams"})
    with pytest.raises((AssertionError, RuntimeError)):
        check(mechanism)


def test_every_check_of_pools_is_shown_to_catch():
    cases = {case[1] for case in test_a_faulty_pool_is_rejected.pytestmark[0].args[1]}
    assert cases == set(pools.CHECKS)


@pytest.mark.parametrize("check", pools.CHECKS, ids=lambda check: check.__name__)
def test_a_plain_pool_is_accepted(check):
    check(pool(Mean))


def other(kind: str, run, **inputs) -> Mechanism:
    return Mechanism("faulty", kind, "core", "", (), frozenset(), "exact", lambda: Example(run, dict(inputs)), (), (), run)


def in_place(x):
    return x.mul_(2)


def shards_matter(x, shards):
    return x.sum() + shards


def half(x):
    return x.to(torch.float64)


def shares_storage(module):
    return module


@pytest.mark.parametrize(
    "mechanism, check",
    [
        (other("function", lambda x: x * torch.rand(()) * float("nan"), x=torch.ones(3)), others.runs_and_repeats),
        (other("function", in_place, x=torch.ones(3)), others.leaves_inputs_alone),
        (other("function", half, x=torch.ones(3, dtype=torch.float64)), others.function_dtypes),
        (other("function", lambda x: x.detach() + 0 * x, x=torch.ones(3, dtype=torch.float64)), others.function_gradients),
        (other("function", lambda x: x if x.is_contiguous() else -x, x=torch.ones(3, 3).double()), others.function_strides),
        (other("output_head", lambda x: x - x.mean(0), x=torch.randn(3, 2)), others.output_head_batches),
        (other("training", shares_storage, module=nn.Linear(2, 2)), others.training_gives_a_module_of_its_own),
        (other("system", shards_matter, x=torch.ones(3), shards=2), others.system_is_independent_of_the_devices),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_other_kinds_are_rejected(mechanism, check):
    with pytest.raises((AssertionError, RuntimeError)):
        check(mechanism)
