"""Moments over the tokens, plain and attentive."""
