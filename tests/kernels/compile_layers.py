"""Layers on the Triton backend under torch.compile(fullgraph=True), each kernel once.

A process of its own, because the run-time shape checks of the test session cannot be compiled.
"""

import torch

from mhlib.heads import MultiHeadAttention, MultiHeadLatentAttention
from mhlib.kernels.targets import interpreting

DEVICE = "cpu" if interpreting() else "cuda"


def same(layer: torch.nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    got = torch.compile(layer, fullgraph=True, backend="aot_eager")(*inputs, causal=True)
    torch.testing.assert_close(got, layer(*inputs, causal=True))
    return got


def main() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(32, 2, num_kv_heads=1, backend="triton").to(DEVICE)
    latent = MultiHeadLatentAttention(32, 4, kv_rank=24, rope_dim=4, execution="absorbed", backend="triton").to(DEVICE)
    x = torch.randn(2, 18, 32, device=DEVICE)
    same(layer, x).sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    with torch.no_grad():
        same(layer, x[:, :3], x)
        same(latent, x[:, :4])


if __name__ == "__main__":
    main()
