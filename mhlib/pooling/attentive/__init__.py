"""Pooling as attention with fewer queries than tokens."""
