"""Exact attention in memory linear in the number of keys, by online softmax over blocks of keys (Rabe and Staats, row 177).

Forward: for a block of queries, key blocks arrive one after the other; the running maximum m, the running sum of
exponentials l and the running weighted sum of values are rescaled whenever m grows. Only the log-sum-exp m + log l of each
row is kept. Backward: the weights of a block are made again from it, so nothing of size queries x keys is ever stored.
"""

from dataclasses import replace

import torch
from torch import Tensor

from mhlib.functional.normalizers import sink_of, softmax
from mhlib.functional.request import Request, Support, cut

BLOCK_Q, BLOCK_K = 256, 512  # rows and columns of logits held at a time, per head


def supports(request: Request) -> Support:
    if request.return_weights:
        return Support(False, "it never holds the weights")
    if request.normalizer is not softmax and _sink(request) is None:
        return Support(False, "online normalisation needs softmax, softmax_one or sink_softmax")
    if request.dropout:
        return Support(False, "it has no dropout")
    return Support(True)


def run(request: Request) -> Tensor:
    return run_with_lse(request)[0]


def run_with_lse(request: Request) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of each row's logits (batch, heads, queries); -inf where nothing is attended to."""
    dtype = request.q.dtype
    q, k, v, bias = request.q, request.k, request.v, request.bias
    if q.dtype not in (torch.float32, torch.float64):  # running sums in half precision would lose what they add
        q, k, v, bias = q.float(), k.float(), v.float(), None if bias is None else bias.float()
        request = replace(request, q=q, k=k, v=v, bias=bias)
    out, lse = _Chunked.apply(q, k, v, bias, _sink(request), request)
    return out.to(dtype), lse


def _sink(request: Request) -> Tensor | None:
    return sink_of(request.normalizer, request.q.shape[1], request.q)


def _blocks(length: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, length)) for i in range(0, length, size)]


def _key_blocks(request: Request, rows: slice) -> list[slice]:
    """The blocks of keys that causality and window leave to these queries; the others are never visited."""
    keys = request.k.shape[-2]
    left, right = request.reach
    first = 0 if left is None else max(0, rows.start + request.offset - left)
    last = keys if right is None else min(keys, rows.stop + request.offset + right)
    return [slice(first + b.start, first + b.stop) for b in _blocks(max(0, last - first), BLOCK_K)]


def _logits(request: Request, rows: slice, cols: slice) -> Tensor:
    """Logits of one block, (batch, kv_heads, group, rows, cols), -inf where attention is not allowed."""
    q, k = request.q[..., rows, :], request.k[..., cols, :]
    logits = _matmul(_grouped(q, k.shape[1]) * request.scale, k.mT)
    if request.bias is not None:
        logits = logits + _grouped(_full_heads(cut(request.bias, rows, cols), request), k.shape[1])
    allowed = request.allowed(rows, cols)
    if allowed is not None:
        logits = logits.masked_fill(~_grouped(_full_heads(allowed, request), k.shape[1]), float("-inf"))
    return logits


def _full_heads(table: Tensor, request: Request) -> Tensor:
    return table.expand(-1, request.q.shape[1], -1, -1)


def _grouped(x: Tensor, kv_heads: int) -> Tensor:
    return x.unflatten(1, (kv_heads, -1))


def _matmul(left: Tensor, right: Tensor) -> Tensor:
    """(b, g, r, n, x) @ (b, g, x, m) as one product per key head: the heads of a group are stacked as rows."""
    return (left.flatten(2, 3) @ right).unflatten(2, left.shape[2:4])


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, bias, sink, request):
        groups = k.shape[1]
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
        lse = q.new_empty(q.shape[:-1])
        start = None if sink is None else _grouped(sink.to(q.dtype).view(1, -1, 1, 1), groups)
        for rows in _blocks(q.shape[-2], BLOCK_Q):
            shape = (q.shape[0], groups, q.shape[1] // groups, rows.stop - rows.start, 1)
            # A sink is a logit that was seen before all keys and has the value zero.
            m = q.new_full(shape, float("-inf")) if start is None else start.expand(shape)
            l = torch.zeros_like(m) if start is None else torch.ones_like(m)
            total = q.new_zeros(*shape[:-1], v.shape[-1])
            for cols in _key_blocks(request, rows):
                s = _logits(request, rows, cols)
                m_new = torch.maximum(m, s.amax(-1, keepdim=True))
                shift = m_new.clamp_min(torch.finfo(s.dtype).min)  # a row without keys so far: -inf - -inf would be NaN
                p, decay = s.sub_(shift).exp_(), (m - shift).exp()
                l = l * decay + p.sum(-1, keepdim=True)
                total = total * decay + _matmul(p, v[..., cols, :])
                m = m_new
                del s, p  # or the block would be held until the next one is made
            out[..., rows, :] = (total / torch.where(l == 0, 1.0, l)).flatten(1, 2)
            lse[..., rows] = (m + l.log()).squeeze(-1).flatten(1, 2)
        ctx.save_for_backward(q, k, v, bias, sink, out, lse)
        ctx.request = request
        return out, lse

    @staticmethod
    def backward(ctx, d_out, d_lse):
        # once_differentiable raises only where the incoming gradient needs one; what is asked for here would be lost otherwise.
        if torch.is_grad_enabled():
            raise RuntimeError("backend 'chunked' has no second derivative (create_graph=True); use backend='reference'")
        q, k, v, bias, sink, out, lse = ctx.saved_tensors
        request, groups = ctx.request, k.shape[1]
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        d_bias = torch.zeros_like(bias) if ctx.needs_input_grad[3] else None
        # softmax's backward: ds = p (dp - sum p dp), and sum_j p_j dp_j = out . d_out
        inner = (out * d_out).sum(-1, keepdim=True) - d_lse[..., None]
        safe = torch.where(lse.isinf(), 0.0, lse)[..., None]
        for rows in _blocks(q.shape[-2], BLOCK_Q):
            do = _grouped(d_out[..., rows, :], groups)
            for cols in _key_blocks(request, rows):
                p = _logits(request, rows, cols).sub_(_grouped(safe[..., rows, :], groups)).exp_()
                dp = _matmul(do, v[..., cols, :].mT)
                ds = dp.sub_(_grouped(inner[..., rows, :], groups)).mul_(p)
                dv[..., cols, :] += p.flatten(2, 3).mT @ do.flatten(2, 3)
                dk[..., cols, :] += ds.flatten(2, 3).mT @ _grouped(q[..., rows, :], groups).flatten(2, 3) * request.scale
                dq[..., rows, :] += (_matmul(ds, k[..., cols, :]) * request.scale).flatten(1, 2)
                if d_bias is not None:
                    piece = cut(d_bias, rows, cols)
                    piece += ds.flatten(1, 2).sum_to_size(piece.shape)
                del p, dp, ds
        d_sink = None
        if ctx.needs_input_grad[4]:
            weight = (sink.view(-1, 1).to(lse.dtype) - safe.squeeze(-1)).exp()
            d_sink = -(weight * inner.squeeze(-1)).sum((0, 2)).to(sink.dtype)
        return dq, dk, dv, d_bias, d_sink, None
