"""Attention over one shared latent: what absorbed multi-head latent attention computes."""

from jaxtyping import Bool, Float
from torch import Tensor

from mhlib.functional.attention import attention
from mhlib.functional.backends.triton import FEW
from mhlib.kernels.targets import available

__all__ = ["latent_attention"]


def latent_attention(
    q: Float[Tensor, "batch heads queries width"],
    latent: Float[Tensor, "batch 1 keys width"],
    rank: int,
    *,
    scale: float,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Float[Tensor, "batch heads queries rank"]:
    r"""Attention whose values are the first ``rank`` columns of its keys, of which there is one head:
    :math:`o_i = \sum_j \mathrm{softmax}_j(q_i \cdot l_j \cdot \mathrm{scale} + b_{ij})\, l_{j,:r}`.

    :func:`mhlib.attention` of the latent with itself, whose arguments and errors it shares; a few queries without gradient
    on CUDA read the latent once (:func:`mhlib.kernels.latent_decode`), where two tensors would be read apart.
    Source: DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434 (rows 34, 89).
    """
    plain = bias is None and not dropout and (mask is None or mask.shape[1] == mask.shape[2] == 1)
    asked = backend == "triton" or backend == "auto" and q.device.type == "cuda"
    if asked and plain and q.shape[2] <= FEW and available(q.device):
        from mhlib.kernels import latent_decode
        from mhlib.kernels.latent_decode import supports

        if supports(q, latent, rank):
            key_mask = None if mask is None else mask[:, 0, 0].expand(q.shape[0], latent.shape[2])
            return latent_decode(q, latent[:, 0], rank, scale=scale, causal=causal, key_mask=key_mask)
    return attention(
        q, latent, latent[..., :rank], scale=scale, mask=mask, bias=bias, causal=causal, dropout=dropout, backend=backend
    )
