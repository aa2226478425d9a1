"""Layers that run on packed sequences, without padding."""
