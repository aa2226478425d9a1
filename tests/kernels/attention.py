"""What the attention kernels are held against."""

import torch

from mhlib.functional.request import window_sides


def reference(q, k, v, *, scale=None, causal=False, window=None, softcap=None, sink=None, alibi_slopes=None, key_mask=None):
    """Output and log-sum-exp by the formula, independent of the kernel: the table of logits in float64."""
    group, offset = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    logits = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    distance = torch.arange(q.shape[2], device=q.device)[:, None] + offset - torch.arange(k.shape[2], device=q.device)
    if alibi_slopes is not None:
        logits = logits - alibi_slopes.view(-1, 1, 1) * distance.abs()
    left, right = window_sides(window, causal)
    sees = torch.ones_like(distance, dtype=torch.bool)
    sees = sees if left is None else sees & (distance <= left)
    sees = sees if right is None and not causal else sees & (-distance <= (0 if causal else right))
    sees = sees if key_mask is None else sees & key_mask[:, None, None]
    logits = logits.masked_fill(~sees, float("-inf"))
    if sink is not None:
        logits = torch.cat([logits, sink.view(-1, 1, 1).expand(*logits.shape[:3], 1)], -1)
    nothing = (logits == float("-inf")).all(-1, keepdim=True)
    weights = torch.where(nothing, 0.0, logits.masked_fill(nothing, 0.0).softmax(-1))
    lse = torch.where(nothing, float("-inf"), logits.masked_fill(nothing, 0.0).logsumexp(-1, keepdim=True))[..., 0]
    return (weights if sink is None else weights[..., :-1]) @ v, lse
