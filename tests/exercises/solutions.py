"""Solutions written apart from the library, one for each exercise, and wasteful ones where memory is limited."""

import math

import torch
from torch import einsum


def scaled_dot_product_attention(q, k, v, mask):
    rows = []
    for i in range(len(q)):
        keys = mask[i].nonzero().flatten()
        z = torch.stack([q[i] @ k[j] for j in keys]) / math.sqrt(len(q[i]))
        w = (z - z.max()).exp()
        rows.append(sum(w[n] * v[j] for n, j in enumerate(keys)) / w.sum())
    return torch.stack(rows)


def split_heads(x, num_heads):
    return torch.stack(x.chunk(num_heads, -1), 1)


def merge_heads(heads):
    return torch.cat(list(heads.unbind(1)), -1)


def unit_variance_scale(head_dim, q_std, k_std):
    return (head_dim * q_std**2 * k_std**2) ** -0.5


def output_jacobian(logits, v):
    return torch.autograd.functional.jacobian(lambda z: z.softmax(-1) @ v, logits).T


def running_softmax(blocks):
    z = torch.cat(list(blocks))
    return z.max(), (z.logsumexp(0) - z.max()).exp()


def streaming_attention(q, blocks):
    k, v = (torch.cat(parts) for parts in zip(*blocks))
    return torch.nn.functional.scaled_dot_product_attention(q[None], k, v)[0]


def merge_partials(out_a, lse_a, out_b, lse_b):
    shares = torch.stack([lse_a, lse_b]).softmax(0)
    return einsum("pn,pnc->nc", shares, torch.stack([out_a, out_b])), torch.stack([lse_a, lse_b]).logsumexp(0)


def logit_gradient(weights, v, out, d_out):
    z = weights.log().requires_grad_()
    return torch.autograd.grad(z.softmax(-1) @ v, z, d_out)[0]


def logit_bytes(heads, queries, keys, block_q, block_k, bytes_per_number):
    held = torch.zeros(heads, queries, keys, dtype=torch.int8, device="meta")
    return [t.numel() * bytes_per_number for t in (held, held[:, :block_q, :block_k])]


def grouped_attention(q, k, v):
    grouped = q.view(len(k), -1, *q.shape[1:])
    logits = einsum("grnd,gmd->grnm", grouped, k) / q.shape[-1] ** 0.5
    return einsum("grnm,gmd->grnd", logits.softmax(-1), v).flatten(0, 1)


def pool_heads(weight, num_heads, num_groups):
    heads = weight.chunk(num_heads)
    each = num_heads // num_groups
    return torch.cat([sum(heads[i : i + each]) / each for i in range(0, num_heads, each)])


def cache_bytes(num_layers, num_kv_heads, head_dim, tokens, batch, bytes_per_number):
    keys = num_kv_heads * head_dim * bytes_per_number
    return batch * tokens * num_layers * (keys + keys)


def decode_seconds(num_heads, num_kv_heads, head_dim, context, batch, peak_flops, bandwidth):
    flops = batch * num_heads * (2 * context * head_dim + 2 * context * head_dim)
    traffic = cache_bytes(1, num_kv_heads, head_dim, context, batch, 2)
    return traffic / bandwidth if flops / traffic < peak_flops / bandwidth else flops / peak_flops


def absorbed_logits(q, w_uk, latent):
    onto_latent = einsum("hnd,hdr->hnr", q, w_uk)
    return einsum("hnr,mr->hnm", onto_latent, latent) * q.shape[-1] ** -0.5


def low_rank(weight, rank):
    vectors = torch.linalg.eigh(weight.T @ weight).eigenvectors[:, -rank:]
    return vectors.T, weight @ vectors


def break_even_queries(keys, head_dim, v_head_dim, kv_rank):
    def per_head(n, absorbed):
        if absorbed:
            return n * kv_rank * head_dim + n * keys * kv_rank * 2 + n * kv_rank * v_head_dim
        return keys * kv_rank * (head_dim + v_head_dim) + n * keys * (head_dim + v_head_dim)

    low, high = 0.0, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if per_head(middle, True) < per_head(middle, False) else (low, middle)
    return low


def latent_cache_ratio(num_heads, head_dim, kv_rank, rope_dim):
    from mhlib import cost
    from mhlib.heads import MultiHeadAttention, MultiHeadLatentAttention

    dim = num_heads * head_dim
    latent = cost.cache_bytes_per_token(lambda: MultiHeadLatentAttention(dim, num_heads, kv_rank=kv_rank, rope_dim=rope_dim))
    return latent / cost.cache_bytes_per_token(lambda: MultiHeadAttention(dim, num_heads))


def attention_bytes(n, m, d, size, fused):
    inputs_and_output = 2 * n * d + 2 * m * d
    if fused:
        return inputs_and_output * size
    logits = weights = n * m
    return (inputs_and_output + 2 * logits + 2 * weights) * size


def queries_to_ridge(heads, groups, size, ridge):
    return next(n for n in range(1, 10**6) if n * 4 * heads / (2 * groups * size) >= ridge)


def window_tiles(n, window, BQ, BK):
    seen = {(i // BQ, j // BK) for i in range(n) for j in range(max(0, i - window + 1), i + 1)}
    return len(seen)


def power_mean(x, p):
    largest = x.max() if p > 0 else x.min()
    return largest * (x / largest).pow(p).mean() ** (1 / p)


def effective_tokens(x, p):
    w = (x / x.max()).pow(p)
    w = w / w.sum()
    return torch.special.entr(w).sum().exp()


def margin_needed(signal, noise, share):
    low, high = -50.0, 50.0
    for _ in range(200):
        middle = (low + high) / 2
        weight = noise * 2.718281828459045**-middle
        low, high = (middle, high) if weight / (signal + weight) > share else (low, middle)
    return low


def focal_pool(x, focus, w_q, w_k, w_v):
    heads = [y[None, None] for y in (x[focus : focus + 1] @ w_q, x @ w_k, x @ w_v)]
    return torch.nn.functional.scaled_dot_product_attention(*heads)[0, 0, 0] + x[focus]


def least_regret(scores):
    worst = [max(float(other - own) for own, other in zip(row, scores.amax(0))) for row in scores]
    return torch.tensor(worst.index(min(worst)))


def pool_many_queries(query, tokens, shares):
    pooled = []
    for q, x, share in zip(query, tokens, shares):
        w = torch.stack([(x @ one / len(one) ** 0.5).softmax(0) for one in q])
        pooled.append((share @ w) @ x)
    return torch.stack(pooled)


def tokens_that_keep_counts(embedding, counts):
    return torch.stack([torch.hstack([embedding, (1 + c).log()]) for c in counts])


def logit_contributions(weights, values, w_o, presence):
    heads, n, d = values.shape
    out = torch.zeros(heads, n, dtype=values.dtype)
    for h in range(heads):
        for j in range(n):
            out[h, j] = presence @ (w_o[:, h * d : (h + 1) * d] @ (weights[h, j] * values[h, j]))
    return out


def first_look_of_a_joint_token(values, present):
    z = torch.zeros(int(present.sum()) + 1, dtype=values.dtype)
    seen = torch.cat([values[present], torch.zeros_like(values[:1])])
    return z.softmax(0) @ seen


def five_axes(query, tokens, shares):
    weights = (query @ tokens.mT / query.shape[-1] ** 0.5).softmax(-1)
    found = (weights[..., None] * tokens[:, None]).sum(2)
    return (shares[..., None] * found).sum(1)


def linear_softmax_push(p, label):
    p = p.clone().requires_grad_()
    y = (p * (p / p.sum())).sum()
    loss = -torch.log(y) if label == 1 else -torch.log1p(-y)
    return -torch.autograd.grad(loss, p)[0]


def running_log_mean(phi, gamma):
    visits = len(phi)
    weights = torch.full((visits,), gamma, dtype=phi.dtype)
    weights[0] = 1.0
    for t in range(visits):
        weights[:t] *= 1 - gamma
    kept = weights > 0
    return (phi[kept] + (weights[kept] / phi.shape[1]).log()[:, None]).flatten().logsumexp(0)


def repeats_keys(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(
        q, *(x.repeat_interleave(len(q) // len(x), 0) for x in (k, v)),
    )  # fmt: skip


def broadcasts_keys(q, k, v):
    grouped = q.unflatten(0, (len(k), -1))
    return ((grouped @ k[:, None].mT / q.shape[-1] ** 0.5).softmax(-1) @ v[:, None]).flatten(0, 1)


def makes_keys(q, w_uk, latent):
    return q @ (latent @ w_uk.mT).mT / q.shape[-1] ** 0.5


WASTEFUL = [("pool_many_queries", five_axes), ("grouped_attention", repeats_keys), ("grouped_attention", broadcasts_keys), ("absorbed_logits", makes_keys)]


def merge_moments(a, b):
    (n, mean_a, within_a), (m, mean_b, within_b) = a, b
    if n == 0 or m == 0:
        return (n + m, *(b[1:] if n == 0 else a[1:]))
    mean = (n * mean_a + m * mean_b) / (n + m)
    between = n * (mean_a - mean) ** 2 + m * (mean_b - mean) ** 2
    return n + m, mean, within_a + within_b + between


def exponent_gradient(x, p):
    exponent = torch.tensor(p, dtype=x.dtype, requires_grad=True)
    y = ((exponent * x.log()).logsumexp(0) - math.log(len(x))) / exponent
    return torch.autograd.grad(y.exp(), exponent)[0]


def weighted_statistics(x, logits):
    w = (logits - logits.logsumexp(0)).exp()[:, None]
    mean = (w * x).sum(0)
    return torch.cat([mean, ((w * (x - mean) ** 2).sum(0)) ** 0.5])


def share_between(x, length):
    inside = torch.stack([piece.var(correction=0) for piece in x.split(length)]).mean()
    return 1 - inside / ((x - x.mean()) ** 2).mean()


def attentive_pair(x, other, form):
    table = torch.tensor([[torch.tanh(a @ form @ b) for b in other] for a in x], dtype=x.dtype)
    best, best_other = table.max(1).values.exp(), table.max(0).values.exp()
    return einsum("n,nd->d", best / best.sum(), x), einsum("m,md->d", best_other / best_other.sum(), other)


def largest_weight(b, tokens):
    logits = torch.tensor([b] + [-b] * (tokens - 1), dtype=torch.float64)
    return logits.softmax(0)[0].item()


def sim_pool(x, w_q, w_k, gamma):
    mean, deviation = x.mean(1, keepdim=True), x.std(1, correction=0, keepdim=True)
    v = (x - mean) / (deviation**2 + 1e-5).sqrt()
    query = sum(x) / len(x) @ w_q
    e = torch.stack([torch.exp(query @ (row @ w_k) / math.sqrt(len(row))) for row in v])
    shifted = v - v.amin() + 1e-6
    return torch.stack([(e @ column**gamma / e.sum()) ** (1 / gamma) for column in shifted.T])
