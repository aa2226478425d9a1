"""Names of other libraries lead to ours."""

import pytest
import torch
from mhlib.heads import MultiHeadAttention
from mhlib.pooling import MeanPool

from contract.common import as_a_user

X = torch.randn(2, 3, 8)


@pytest.fixture
def untyped():
    """As for a user: the tests' own hook would complain first."""
    with as_a_user():
        yield


@pytest.mark.parametrize("layer", [MultiHeadAttention(8, 2), MeanPool(8)], ids=["head", "pool"])
@pytest.mark.parametrize("word, here", [("key_padding_mask", "key_mask, where True means a real token"), ("attn_mask", "mask, where True means may attend")])
def test_a_name_from_elsewhere_is_translated(layer, word, here):
    with pytest.raises(TypeError, match=f"does not know the argument {word}; {word} is here {here}"):
        layer(X, **{word: torch.ones(2, 3, dtype=torch.bool)})


def test_an_unknown_name_gets_no_advice():
    with pytest.raises(TypeError, match="does not know the argument nonsense$"):
        MeanPool(8)(X, nonsense=1)


def test_a_mask_of_padding_is_sent_to_key_mask(untyped):
    with pytest.raises(ValueError, match=r"a mask of padding, \(batch, keys\), goes into key_mask"):
        MultiHeadAttention(8, 2)(X, mask=torch.ones(2, 3, dtype=torch.bool))


@pytest.mark.parametrize("ragged", [[X[0], X[1, :2]], torch.nested.nested_tensor([X[0], X[1, :2]])], ids=["list", "nested"])
def test_a_ragged_batch_is_told_to_be_padded(untyped, ragged):
    with pytest.raises(ValueError, match=r"pad sequences to \(batch, tokens, 8\) and say with key_mask"):
        MeanPool(8)(ragged)
