"""Heads that share keys and values: multi-query, grouped-query and weighted grouped-query attention."""
