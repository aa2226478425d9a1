"""Pools of two sets at once, each side pooled by what the other holds."""
