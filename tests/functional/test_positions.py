"""Positions: relative by construction, partial, offset for decoding, agreement with transformers."""

import pytest
import torch

from mhlib.functional.positions import ALiBi, LearnedPositions, RelativePositionBias, Rotary, alibi_slopes


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dim", [8, 4])
def test_rotated_dot_products_depend_on_distance_alone(interleaved, dim):
    rope = Rotary(dim, base=100.0, interleaved=interleaved)
    q, k = torch.randn(2, 1, 8, dtype=torch.float64)
    at = lambda x, p: rope.rotate(x, torch.tensor([p]))  # noqa: E731
    torch.testing.assert_close((at(q, 7) * at(k, 3)).sum(), (at(q, 104) * at(k, 100)).sum())
    assert not torch.allclose((at(q, 7) * at(k, 3)).sum(), (at(q, 7) * at(k, 4)).sum())
    torch.testing.assert_close(at(q, 0), q)
    torch.testing.assert_close(at(q, 9).norm(), q.norm())
    torch.testing.assert_close(at(q, 9)[:, dim:], q[:, dim:])  # partial rotary leaves the rest


def test_the_two_layouts_are_one_permutation_apart():
    x, p = torch.randn(3, 5, 8), torch.arange(5)
    perm = torch.arange(8).view(2, 4).T.flatten()  # halves (i, i+4) to neighbours (2i, 2i+1)
    half, neighbours = Rotary(8), Rotary(8, interleaved=True)
    torch.testing.assert_close(half.rotate(x, p)[..., perm], neighbours.rotate(x[..., perm], p))


def test_offset_for_decoding():
    rope, x = Rotary(8), torch.randn(1, 2, 6, 8)
    whole = rope.rotate(x, torch.arange(6))
    torch.testing.assert_close(rope.rotate(x[:, :, 4:], torch.arange(4, 6)), whole[:, :, 4:])


def test_given_frequencies():
    theta = tuple(Rotary(8).angles(torch.tensor(1), torch.float64).tolist())
    x = torch.randn(5, 8, dtype=torch.float64)
    torch.testing.assert_close(Rotary(8, frequencies=theta).rotate(x, torch.arange(5)), Rotary(8).rotate(x, torch.arange(5)))


def test_angles_keep_float32_precision_in_half():
    x = torch.ones(1, 8, dtype=torch.bfloat16)
    got = Rotary(8).rotate(x, torch.tensor([30001]))
    want = Rotary(8).rotate(x.double(), torch.tensor([30001]))
    torch.testing.assert_close(got.double(), want, atol=2e-2, rtol=0)


@pytest.mark.peer("multi_head_attention", "transformers")
def test_rotary_equals_transformers_llama():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = pytest.importorskip("transformers").LlamaConfig(
        hidden_size=32, num_attention_heads=2, rope_parameters={"rope_type": "default", "rope_theta": 500.0}
    )
    q, k = torch.randn(2, 1, 2, 9, 16)
    positions = torch.arange(9)[None]
    cos, sin = llama.LlamaRotaryEmbedding(config)(q, positions)
    want = llama.apply_rotary_pos_emb(q, k, cos, sin)
    rope = Rotary(16, base=500.0)
    torch.testing.assert_close((rope.rotate(q, positions[0]), rope.rotate(k, positions[0])), want)


def test_alibi():
    torch.testing.assert_close(alibi_slopes(8), 2.0 ** -torch.arange(1, 9))
    twelve = alibi_slopes(12)
    torch.testing.assert_close(twelve[:8], alibi_slopes(8))
    torch.testing.assert_close(twelve[8:], alibi_slopes(16)[::2][:4])
    bias = ALiBi(4)(torch.tensor([5]), torch.arange(6))
    torch.testing.assert_close(bias[0, :, 0], -alibi_slopes(4)[:, None] * torch.arange(5, -1, -1))


@pytest.mark.peer("multi_head_attention", "transformers")
@pytest.mark.parametrize("causal", [False, True])
def test_relative_buckets_equal_transformers_t5(causal):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    bias = RelativePositionBias(2, num_buckets=32, max_distance=128, causal=causal)
    distance = torch.arange(-300, 300)
    want = t5.T5Attention._relative_position_bucket(-distance, bidirectional=not causal, num_buckets=32, max_distance=128)
    assert torch.equal(bias.bucket(distance), want)


def test_learned_positions_with_offset(as_a_user):
    positions, x = LearnedPositions(10, 4), torch.randn(2, 6, 4)
    torch.testing.assert_close(positions(x[:, 4:], offset=4), positions(x)[:, 4:])
    with pytest.raises(ValueError, match="knows 10 positions, position 11 was asked for"):
        positions(x, offset=6)


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: Rotary(7), "must be even and at least 2, got 7"),
        (lambda: Rotary(8, frequencies=(1.0,)), "expected 4 frequencies"),
        (lambda: Rotary(16).rotate(torch.zeros(3, 8), torch.arange(3)), r"heads of at least that width, got x of shape \(3, 8\)"),
        (lambda: RelativePositionBias(2, num_buckets=5), "num_buckets must be even"),
    ],
)
@pytest.mark.usefixtures("as_a_user")
def test_errors(make, match):
    with pytest.raises(ValueError, match=match):
        make()
