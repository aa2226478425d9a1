"""The conversion to latent attention beside numpy's singular values: its error is exactly what the theorem says."""

import numpy as np
import pytest
import torch

from mhlib.functional.positions import Rotary
from mhlib.heads import GroupedQueryAttention, mha2mla

DIM, HEADS, HEAD_DIM = 20, 4, 6


def layer(groups, rope):
    return GroupedQueryAttention(
        DIM, HEADS, num_kv_heads=groups, head_dim=HEAD_DIM, v_head_dim=5, rope=Rotary(HEAD_DIM) if rope else None
    ).double()


def original(mha, plain):
    """The rows of the key and value projections that are factored, plain key rows of each head first."""
    heads = lambda proj: proj.weight.detach().numpy().reshape(mha.num_kv_heads, -1, DIM)  # noqa: E731
    return heads(mha.k_proj)[:, plain].reshape(-1, DIM), heads(mha.v_proj).reshape(-1, DIM)


def converted(mla, plain):
    """The same rows, multiplied out of the converted layer."""
    down = mla.kv_a_proj.weight.detach().numpy()[: mla.kv_rank]
    up = mla.kv_b_proj.weight.detach().numpy().reshape(mla.num_kv_heads, -1, mla.kv_rank)
    return (up[:, : len(plain)].reshape(-1, mla.kv_rank) @ down, up[:, len(plain) :].reshape(-1, mla.kv_rank) @ down)


def discarded(matrix, rank):
    """Sum of the squares of all singular values but the ``rank`` largest."""
    return np.square(np.linalg.svd(matrix, compute_uv=False)[rank:]).sum()


@pytest.mark.peer("mha2mla", "numpy")
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("rope_dim, plain", [(0, range(6)), (2, [1, 2, 4, 5]), (4, [2, 5])])  # halves: pairs (i, i + 3)
@pytest.mark.parametrize("rank", [1, 2, 5, 8])
def test_the_error_is_what_was_discarded(groups, rope_dim, plain, rank):
    mha = layer(groups, rope_dim > 0)
    keys, values = original(mha, list(plain))
    errors = {}
    for factorization in ("joint", "split") if rank > 1 else ("joint",):  # split: one column each at least
        mla = mha2mla(mha, kv_rank=rank, rope_dim=rope_dim, factorization=factorization)
        new_keys, new_values = converted(mla, list(plain))
        errors[factorization] = (np.square(keys - new_keys).sum(), np.square(values - new_values).sum())
    joint, split = sum(errors["joint"]), errors.get("split")
    np.testing.assert_allclose(joint, discarded(np.concatenate([keys, values]), rank), atol=1e-12)
    if split is not None:
        np.testing.assert_allclose(split, (discarded(keys, rank - rank // 2), discarded(values, rank // 2)), atol=1e-12)
        assert joint <= sum(split) + 1e-12


@pytest.mark.peer("mha2mla", "numpy")
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_rotary_rows_are_kept_as_they_were(groups):
    mha = layer(groups, rope=True)
    mla = mha2mla(mha, kv_rank=3, rope_dim=4)
    kept = mla.kv_a_proj.weight[mla.kv_rank :].unflatten(0, (groups, 4))
    rows = mha.k_proj.weight.unflatten(0, (groups, HEAD_DIM))
    torch.testing.assert_close(kept, rows[:, [0, 3, 1, 4]])  # pairs 0 and 1, now neighbours
