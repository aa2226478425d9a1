"""Token by token: a model goes on from a prompt, with a cache per block."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["generate"]


@torch.no_grad()
def generate(
    model: Any,
    ids: Int[Tensor, "batch tokens"],
    max_new_tokens: int,
    *,
    key_mask: Bool[Tensor, "batch tokens"] | None = None,
    temperature: float = 0.0,
    seed: int | None = None,
) -> Int[Tensor, "batch new"]:
    """New tokens of each sequence, up to and with its end token; after that it is filled with padding.

    Args:
        model: a :class:`mhlib.checkpoints.CausalLM`.
        ids: the prompts, padded on the left.
        key_mask: True = a real token of the prompt.

    The rest as in :meth:`mhlib.checkpoints.CausalLM.generate`.
    """
    if ids.shape[1] == 0:
        raise ValueError(f"a prompt needs at least one token, got shape {tuple(ids.shape)}")
    if key_mask is not None and not key_mask[:, -1].all():
        raise ValueError("prompts must be padded on the left: the last token of each must be a real one")
    if temperature < 0:
        raise ValueError(f"temperature must be 0 (the likeliest token) or positive, got {temperature}")
    device = model.embedding.weight.device
    ids, key_mask = ids.to(device), None if key_mask is None or key_mask.all() else key_mask.to(device)
    generator = torch.Generator(device)
    generator.manual_seed(seed) if seed is not None else generator.seed()
    eos, pad = (None, 0) if model.tokenizer is None else (model.tokenizer.eos, model.tokenizer.pad)

    caches = model.init_caches(ids.shape[0], ids.shape[1] + max_new_tokens)
    running = torch.ones(ids.shape[0], 1, dtype=torch.bool, device=device)
    new = ids[:, :0]
    step = ids
    for _ in range(max_new_tokens):
        logits = model(step, caches=caches, key_mask=key_mask, last_only=True)[:, -1]
        step = torch.where(running, _pick(logits, temperature, generator), pad)
        new = torch.cat([new, step], 1)
        running = running & (step != eos) if eos is not None else running
        if not running.any():
            break
        if key_mask is not None:
            key_mask = torch.cat([key_mask, torch.ones_like(running)], 1)
    return new


def _pick(logits: Float[Tensor, "batch vocabulary"], temperature: float, generator: torch.Generator) -> Int[Tensor, "batch 1"]:
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    return torch.multinomial((logits.float() / temperature).softmax(-1), 1, generator=generator)
