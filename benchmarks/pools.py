"""Every registered pool beside its peer: torch's own operations, attention with one query, torch_geometric's aggregations."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.contest import Contest
from benchmarks.formulas import formulas
from mhlib import pooling
from mhlib.experiments import TinyEncoder

__all__ = ["contests"]

HEADS = 4


def contests(batch: int = 16, tokens: int = 256, dim: int = 256, *, backward: bool = False) -> Iterator[Contest]:
    """One contest a pool; pools without a peer are timed alone, so that none is missing from the table."""
    from mhlib import registry

    torch.manual_seed(0)
    x = torch.rand(batch, tokens, dim) + 0.1  # positive, for the powers
    x.requires_grad_(backward)
    size = f"{batch} x {tokens} x {dim}" + (", backward" if backward else "")
    inputs = (x,) if backward else ()
    built = _plain(x) | _powers(x) | _attention(x) | _readers(x) | formulas(x)
    for name, (ours, peers, why) in built.items():
        yield Contest(name, size, ours, peers, inputs, why=why)
    small = torch.rand(batch, tokens, 8)
    for mechanism in registry.mechanisms().values():
        if mechanism.kind == "pool" and mechanism.name not in built and not backward:
            alone = _alone(mechanism, small)
            if alone is not None:
                yield Contest(mechanism.name, "its example", alone, {}, why="timed alone, without gradients")


def _alone(mechanism, x: Tensor) -> Callable[[], Tensor] | None:
    """The pool's own small example, on as many tokens; None if it needs further inputs than a set."""
    pool = mechanism.example()
    width = getattr(pool, "dim", None)
    if not isinstance(width, int) or getattr(pool, "inputs", ()):
        return None
    tokens = x[..., :1].repeat(1, 1, width)
    pool = pool.eval()

    def run():
        y = pool(tokens)
        return y[0] if isinstance(y, tuple) else y

    return run


Built = dict[str, tuple[Callable[[], Tensor], dict[str, Callable[[], Tensor]], str]]


def _aggregation(x: Tensor, make: Callable) -> dict[str, Callable[[], Tensor]]:
    """torch_geometric's aggregation over the same sets, one after the other in one tensor; nothing if it is not installed."""
    try:
        from torch_geometric.nn import aggr
    except ImportError:
        return {}
    module, batch = make(aggr), x.shape[0]
    index = torch.arange(batch).repeat_interleave(x.shape[1])
    return {"torch_geometric": lambda: module(x.flatten(0, 1), index, dim_size=batch)}


def _plain(x: Tensor) -> Built:
    dim = x.shape[-1]
    sharp = pooling.LogSumExpPool(dim, 0.5, average=False)
    rows = {
        "mean_pool": (pooling.MeanPool(dim), lambda: x.mean(1), lambda a: a.MeanAggregation(), ""),
        "sum_pool": (pooling.SumPool(dim), lambda: x.sum(1), lambda a: a.SumAggregation(), ""),
        "max_pool": (pooling.MaxPool(dim), lambda: x.amax(1), lambda a: a.MaxAggregation(), ""),
        "min_pool": (pooling.MinPool(dim), lambda: x.amin(1), lambda a: a.MinAggregation(), ""),
        "first_pool": (pooling.FirstPool(dim), lambda: x[:, 0], None, "finds the first real token of each set; x[:, 0] takes a view"),
        "last_pool": (pooling.LastPool(dim), lambda: x[:, -1], None, "finds the last real token of each set; x[:, -1] takes a view"),
        "quantile_pool": (pooling.QuantilePool(dim, 0.35), lambda: torch.quantile(x, 0.35, dim=1), None, ""),
        "std_pool": (
            pooling.StdPool(dim), lambda: x.std(1, correction=0), None,
            "its state is mean and squared deviations, so that a set may come in pieces",
        ),
        "log_sum_exp_pool": (sharp, lambda: 0.5 * torch.logsumexp(2 * x, 1), None, ""),
    }  # fmt: skip
    return {
        name: ((lambda pool=pool: pool(x)), {"torch": torchs} | (_aggregation(x, make) if make else {}), why)
        for name, (pool, torchs, make, why) in rows.items()
    }


def _powers(x: Tensor) -> Built:
    dim = x.shape[-1]
    eps = 1e-3
    gem = pooling.GeneralizedMeanPool(dim, 2.5, eps=eps)
    groups = pooling.GroupGeneralizedMeanPool(dim, HEADS, p=2.5, eps=eps)
    why = "stays in range by logarithms; the peers raise to the power as it stands"
    literally = lambda p: lambda: x.clamp_min(eps).pow(p()).mean(1).pow(1 / p())  # noqa: E731
    theirs = lambda channels: lambda a: a.PowerMeanAggregation(  # noqa: E731
        2.5, learn=True, channels=channels, clamp_min=eps, clamp_max=None
    )
    return {
        "generalized_mean_pool": (lambda: gem(x), {"torch": literally(lambda: gem.p)} | _aggregation(x, theirs(1)), why),
        "group_generalized_mean_pool": (
            lambda: groups(x),
            {"torch": literally(lambda: groups.p.repeat_interleave(dim // HEADS))} | _aggregation(x, theirs(dim)),
            why,
        ),
    }


def _attention(x: Tensor) -> Built:
    """Attention pools beside scaled_dot_product_attention between the same projections, or torch's own layers."""
    batch, _, dim = x.shape
    split = lambda t: t.unflatten(-1, (HEADS, -1)).transpose(1, 2)  # noqa: E731
    learned, ada, qkv, sim = (
        pooling.AttentionPool(dim, HEADS), pooling.AdaPool(dim, HEADS), pooling.QKVPool(dim, HEADS), pooling.SimPool(dim, gamma=None),
    )  # fmt: skip
    classes, sets, average = pooling.ClassQueryPool(dim, 10, HEADS), pooling.AttSets(dim), pooling.AttentiveAveragePool(dim, 1)

    def sdpa(pool: nn.Module, query: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def run():
            q, k, v = split(pool.q_proj(query())), split(pool.k_proj(x)), split(pool.v_proj(x))
            return pool.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

        return run

    def sim_by_hand():
        v = F.layer_norm(x, (dim,), sim.norm.weight, sim.norm.bias, eps=1e-6)
        q = sim.q_proj(x.mean(1, keepdim=True))
        return F.scaled_dot_product_attention(q, sim.k_proj(v), v)[:, 0]

    layer = _torch_layer(dim, encoder := TinyEncoder(dim, HEADS, num_layers=1))
    token = pooling.ClassTokenPool(dim, encoder)
    mean, query = (lambda: x.mean(1, keepdim=True)), (lambda: learned.query.expand(batch, -1, -1))
    gate = nn.Linear(dim, dim, bias=False)
    read = nn.Linear(dim, 1, bias=False)
    gate.weight, read.weight = sets.score.weight, average.query
    scorer = nn.Sequential(average.hidden, nn.Tanh(), read)
    attentive = _aggregation(x, lambda a: a.AttentionalAggregation(scorer))
    return {
        "attention_pool": (lambda: learned(x), {"sdpa, one query": sdpa(learned, query)}, ""),
        "ada_pool": (lambda: ada(x), {"sdpa, one query": sdpa(ada, mean)}, ""),
        "sim_pool": (lambda: sim(x), {"sdpa, one query": sim_by_hand}, ""),
        "qkv_pool": (
            lambda: qkv(x), {"sdpa, then mean": lambda: sdpa(qkv, lambda: x)().mean(1)},
            "averages the weights over the queries first, which needs them: the paper's weights can be returned",
        ),
        "class_query_pool": (
            lambda: classes(x),
            {"sdpa": lambda: classes.presence(sdpa(classes, lambda: classes.query.expand(batch, -1, -1))())[..., 0]},
            "also reports what each class found (aux)",
        ),
        "class_token_pool": (lambda: token(x), {"torch's encoder layer": lambda: _with_token(layer, token, x)}, ""),
        "att_sets": (lambda: sets(x), _aggregation(x, lambda a: a.AttentionalAggregation(gate)), ""),
        "attentive_average_pool": (
            lambda: average(x), {name: lambda run=run: average.o_proj(run()) for name, run in attentive.items()}, "",
        ),
    }  # fmt: skip


def _readers(x: Tensor) -> Built:
    """Pools with several queries beside attention between the same maps and what they do with its result."""
    batch, _, dim = x.shape
    split = lambda t: t.unflatten(-1, (HEADS, -1)).transpose(1, 2)  # noqa: E731
    stamp, induced = pooling.StampPool(dim, HEADS), pooling.InducedPool(dim, HEADS, num_queries=HEADS)
    register = pooling.RegisterPredictor(dim, HEADS, num_queries=HEADS)

    def read(pool: nn.Module, query: Tensor, tokens: Tensor) -> Tensor:
        q, k, v = split(pool.q_proj(query)), split(pool.k_proj(tokens)), split(pool.v_proj(tokens))
        return pool.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def stamped():
        tokens = split(stamp.kv_proj(x))
        query = split(stamp.query.expand(batch, -1, -1))
        found = F.scaled_dot_product_attention(query, tokens, tokens).mean(2).flatten(1)
        return stamp.o_proj(found) + stamp.residual * x.mean(1)

    def registers():
        z = read(register, register.query.expand(batch, -1, -1), register.token_norm(x))
        return z + register.mlp(register.mlp_norm(z))

    def points():
        asked = induced.query.expand(batch, -1, -1)
        z = asked + read(induced, induced.query_norm(asked), induced.context_norm(x))
        return z + induced.mlp(induced.mlp_norm(z))

    return {
        "stamp_pool": (lambda: stamp(x), {"sdpa": stamped}, "one share per query and head, learned"),
        "register_predictor": (lambda: register(x), {"sdpa": registers}, ""),
        "induced_pool": (lambda: induced(x), {"sdpa": points}, ""),
    }


def _with_token(layer: nn.Module, token: nn.Module, x: Tensor) -> Tensor:
    first = token.tokens[0](x.shape[0])[:, None]
    return layer(torch.cat([first, x], 1))[:, 0]


def _torch_layer(dim: int, encoder: nn.Module) -> nn.TransformerEncoderLayer:
    """torch's pre-norm encoder layer with the weights of ours."""
    layer = nn.TransformerEncoderLayer(dim, HEADS, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    attention = encoder.attention[0]
    with torch.no_grad():
        layer.self_attn.in_proj_weight.copy_(
            torch.cat([p.weight for p in (attention.q_proj, attention.k_proj, attention.v_proj)])
        )
        layer.self_attn.out_proj.weight.copy_(attention.o_proj.weight)
    for theirs, ours in (
        (layer.linear1, encoder.feed_forward[0][0]), (layer.linear2, encoder.feed_forward[0][2]),
        (layer.norm1, encoder.norms[0]), (layer.norm2, encoder.norms[1]),
    ):  # fmt: skip
        theirs.load_state_dict(ours.state_dict())
    return layer
