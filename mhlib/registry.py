"""The registry: every mechanism of the library, what it claims about itself, and how to try it small.

A mechanism registers where it is defined, so one file is all it takes::

    @register(
        "grouped_query_attention", kind="head", family="kv-sharing", stage="project", papers=(194,),
        properties=("causal", "decodes", "equivariant", "compiles"),
        example=lambda: GroupedQueryAttention(16, 4, num_kv_heads=2),
        reductions=(Reduction("num_kv_heads = num_heads: multi-head attention", _is_multi_head),),
    )
    class GroupedQueryAttention(MultiHeadAttention): ...

``mechanisms()`` finds the files by that call and imports them; nothing else has to be changed. The contract tests run over
what it returns.
"""

import functools
import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["Example", "FAMILIES", "KINDS", "Mechanism", "PROPERTIES", "Reduction", "find", "mechanisms", "register"]

#: What a mechanism can be. Each kind has its own contract tests, and its own form of ``example``.
KINDS = {
    "head": "a subclass of MultiHeadAttention; example() builds a small layer",
    "pool": "pool(x, key_mask) -> y over (batch, tokens, dim); example() builds a small pool",
    "window_pool": "a pool over the windows of a map (batch, channels, height, width); example() builds a small one",
    "output_head": "features to the outputs of one or more tasks; example() gives an Example",
    "function": "a function of tensors; example() gives an Example with float64 inputs",
    "training": "a recipe that makes one module from another; example() gives an Example whose run returns a module",
    "analysis": "numbers computed about a model or a cost; example() gives an Example",
    "system": "a schedule over several devices that computes a known function; example() gives an Example with `shards`",
}

#: The families of the catalogue, and how many rows it has: written out, so that a registration need not read the catalogue.
FAMILIES = (
    "core", "projection", "kv-sharing", "latent", "score", "head-mixing", "head-routing", "head-regularisation",
    "head-analysis", "sparse", "local-multiscale", "linear", "moe", "hybrid", "token-reduction", "multi-output", "systems",
    "pool-global", "pool-local", "pool-attentive", "pool-statistics", "pool-mil", "pool-mixer", "pool-pyramid",
    "pool-structure", "pool-embedding", "theory", "applications",
)  # fmt: skip
ROWS = 285

#: What a mechanism can promise. Each promise is tested; for a head, what is not promised must be refused with an error.
PROPERTIES = {
    "causal": "with causal=True no query sees a later token",
    "decodes": "init_cache() exists, and step-by-step decoding equals one pass",
    "equivariant": "permuting the tokens permutes the output",
    "invariant": "permuting the tokens leaves the output as it is",
    "duplicable": "a set that holds every token twice pools to the same",
    "streams": "start, update and finish over pieces of a set give the whole",
    "compiles": "torch.compile(fullgraph=True) works, backward included",
}


@dataclass(frozen=True)
class Example:
    """A callable with small inputs, tensors in float64: ``run(**inputs)``."""

    run: Callable[..., Any]
    inputs: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        return self.run(**self.inputs)


@dataclass(frozen=True)
class Reduction:
    """What a mechanism becomes under some setting: ``build()`` gives both sides with the same weights.

    Args:
        text: the setting and what it gives, as shown in the book.
        build: returns (mechanism, what it reduces to), two callables of the same inputs. Heads and pools are called with
            random tokens (batch, tokens, dim); otherwise both sides take no arguments and return tensors.
        calls: keyword arguments with which both sides are compared, one dict per comparison.
    """

    text: str
    build: Callable[[], tuple[Callable[..., Any], Callable[..., Any]]]
    calls: tuple[dict[str, Any], ...] = ({},)


@dataclass(frozen=True)
class Mechanism:
    """One registered mechanism."""

    name: str
    kind: str
    family: str
    stage: str
    papers: tuple[int, ...]
    properties: frozenset[str]
    gradient: str
    example: Callable[[], Any]
    reductions: tuple[Reduction, ...]
    peers: tuple[str, ...]
    obj: Any

    @property
    def title(self) -> str:
        """The first sentence of its docstring."""
        doc = inspect.getdoc(self.obj) or self.name
        return re.split(r"(?<=[.:])\s", doc.split("\n\n")[0].replace("\n", " "))[0].rstrip(".:")

    @property
    def path(self) -> str:
        """Where it is imported from, such as ``mhlib.heads.GroupedQueryAttention``."""
        package = ".".join(self.obj.__module__.split(".")[:2])
        return f"{package}.{self.obj.__qualname__}"


_REGISTERED: dict[str, Mechanism] = {}
T = TypeVar("T")


def register(
    name: str,
    *,
    kind: str,
    family: str,
    example: Callable[[], Any],
    stage: str = "",
    papers: tuple[int, ...] = (),
    properties: tuple[str, ...] = (),
    gradient: str = "exact",
    reductions: tuple[Reduction, ...] = (),
    peers: tuple[str, ...] = (),
) -> Callable[[T], T]:
    """Class or function decorator that enters a mechanism into the registry.

    Args:
        name: snake_case, unique.
        kind: one of ``KINDS``.
        family: the family of the catalogue that it belongs to, one of ``FAMILIES``.
        example: builds it small; see ``KINDS`` for the form.
        stage: for a head, the stage or hook that it changes: project, score, normalize, aggregate, merge, ...
        papers: row numbers of the catalogue that it implements; none for a mechanism without a row.
        properties: the promises that it makes, out of ``PROPERTIES``.
        gradient: "exact", or "surrogate" where a part is detached or straight-through by design (no gradcheck then),
            or "none" where nothing is differentiated.
        reductions: what it becomes under some setting.
        peers: independent packages that a peer test compares it with.
    """
    if kind not in KINDS:
        raise ValueError(f"{name}: kind must be one of {', '.join(KINDS)}, got {kind!r}")
    if family not in FAMILIES:
        raise ValueError(f"{name}: family must be one of {', '.join(FAMILIES)}, got {family!r}")
    strange = [n for n in papers if not isinstance(n, int) or not 1 <= n <= ROWS]
    if strange:
        raise ValueError(
            f"{name}: papers must be row numbers of the catalogue, 1 to {ROWS}, got {', '.join(map(repr, strange))}; "
            "leave papers out where the catalogue has no row"
        )
    unknown = set(properties) - set(PROPERTIES)
    if unknown:
        raise ValueError(f"{name}: properties must be among {', '.join(PROPERTIES)}, got {', '.join(sorted(unknown))}")
    if gradient not in ("exact", "surrogate", "none"):
        raise ValueError(f"{name}: gradient must be 'exact', 'surrogate' or 'none', got {gradient!r}")

    def enter(obj: T) -> T:
        known = _REGISTERED.get(name)
        if known is not None and (known.obj.__module__, known.obj.__qualname__) != (obj.__module__, obj.__qualname__):
            raise ValueError(f"{name!r} is registered twice, by {known.path} and {obj.__module__}.{obj.__qualname__}")
        _REGISTERED[name] = Mechanism(
            name, kind, family, stage, tuple(papers), frozenset(properties), gradient, example, tuple(reductions),
            tuple(peers), obj,
        )  # fmt: skip
        if isinstance(obj, type):
            obj.promises = frozenset(properties)  # a layer refuses what it does not promise
        return obj

    return enter


def mechanisms() -> dict[str, Mechanism]:
    """All mechanisms by name, in the order of their families."""
    for module in _modules():
        importlib.import_module(module)
    return dict(sorted(_REGISTERED.items(), key=lambda item: (item[1].family, item[0])))


def find(name: str) -> Mechanism:
    """The mechanism of that name; a KeyError names the nearest ones."""
    import difflib

    known = mechanisms()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else "python -m mhlib list shows all"
    raise KeyError(f"no mechanism is called {name!r}; {hint}")


@functools.cache
def _modules() -> tuple[str, ...]:
    root = Path(__file__).parent
    uses = re.compile(r"^@?register\(", re.MULTILINE)
    return tuple(
        ".".join(["mhlib", *file.relative_to(root).with_suffix("").parts])
        for file in sorted(root.rglob("*.py"))
        if uses.search(file.read_text(encoding="utf-8"))
    )
