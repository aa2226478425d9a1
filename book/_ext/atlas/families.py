"""What families and kinds of the catalogue are called on pages, in the order of the book's parts."""

FAMILIES = {
    "core": "Foundations",
    "kv-sharing": "Sharing keys and values",
    "latent": "Latent attention",
    "projection": "Projections",
    "head-mixing": "Mixing between heads",
    "head-routing": "Routing to heads",
    "head-regularisation": "Regularising heads",
    "score": "Scores and normalisers",
    "local-multiscale": "Local and multi-scale",
    "sparse": "Sparse attention",
    "linear": "Linear attention",
    "hybrid": "Hybrids",
    "token-reduction": "Fewer tokens",
    "pool-global": "Pooling: global",
    "pool-local": "Pooling: local",
    "pool-pyramid": "Pooling: pyramids",
    "pool-attentive": "Pooling: attentive",
    "pool-statistics": "Pooling: statistics",
    "pool-mil": "Pooling: multiple instance",
    "pool-embedding": "Pooling: embeddings",
    "pool-mixer": "Pooling: mixers",
    "pool-structure": "Pooling: structures",
    "multi-output": "Multi-output heads",
    "moe": "Mixtures of experts",
    "head-analysis": "Understanding heads",
    "theory": "Theory",
    "systems": "Systems",
    "applications": "Applications",
}
STATES = ("works", "in progress", "planned")
#: Parts of the book, which give families their colour: Okabe and Ito's, told apart by colour-blind readers.
PARTS = {
    "foundations": ("core",),
    "heads": ("kv-sharing", "latent", "projection", "head-mixing", "head-routing", "head-regularisation", "score"),
    "sparse and linear": ("local-multiscale", "sparse", "linear", "hybrid", "token-reduction"),
    "pooling": tuple(family for family in FAMILIES if family.startswith("pool-")),
    "outputs": ("multi-output", "moe"),
    "understanding and systems": ("head-analysis", "theory", "systems", "applications"),
}
PART_OF = {family: part for part, families in PARTS.items() for family in families}


def known(families: set[str]) -> None:
    """A ValueError names the families that have no heading."""
    if unknown := families - set(FAMILIES):
        raise ValueError(f"no heading for the families {', '.join(sorted(unknown))}: add it to FAMILIES in {__name__}")
