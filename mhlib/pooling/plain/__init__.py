"""Pools without a query: mean, sum, extremes, ends, quantiles, deviation."""
