"""Side-by-side timings against peers: `python -m benchmarks.cpu`; recorded runs of other machines lie in `results`."""
