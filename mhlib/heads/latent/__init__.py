"""Heads whose cache is a low-rank latent: multi-head latent attention, and conversion to it."""
