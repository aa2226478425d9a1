"""An image decoder that attends to patches and registers together (row 3)."""

import copy
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mhlib.pooling.attentive.blocks import PreNormBlock
from mhlib.registry import Example, Reduction, register

__all__ = ["RegisterDecoder"]


def _decoder() -> "RegisterDecoder":
    decoder = RegisterDecoder(5, num_registers=2, grid=(2, 3), patch=2, dim=8, num_heads=2, num_blocks=2).double()
    with torch.no_grad():
        for p in decoder.parameters():
            p += 0.1 * torch.randn_like(p)
    return decoder


def _example() -> Example:
    decoder = _decoder()
    patches, registers = torch.randn(3, 6, 5, dtype=torch.float64), torch.randn(3, 2, 5, dtype=torch.float64)
    return Example(lambda **inputs: copy.deepcopy(decoder)(**inputs), {"patches": patches, "registers": registers})


def _masked_registers_are_none() -> tuple[Any, Any]:
    decoder = _decoder()
    patches, registers = torch.randn(3, 6, 5, dtype=torch.float64), torch.randn(3, 2, 5, dtype=torch.float64)
    hidden = torch.zeros(3, 2, dtype=torch.bool)
    return lambda: decoder(patches, registers, register_mask=hidden), lambda: decoder(patches)


@register(
    "register_decoder",
    kind="output_head",
    family="pool-attentive",
    papers=(3,),
    example=_example,
    reductions=(Reduction("all registers masked: the decoder of patches alone", _masked_registers_are_none),),
    peers=("torch",),
)
class RegisterDecoder(nn.Module):
    r"""Joint patch-register decoder: a transformer over patches and registers, read out at the patches (row 3).

    Patches get a learned position each, registers a learned vector that says which register they are. All attend to all; the
    registers' outputs are dropped, and each patch's output is unfolded to its pixels.

    Args:
        input_dim: width of the encoder's patches and registers.
        num_registers: number R of registers; 0 makes the decoder of patches alone.
        grid: patches down and across.
        patch: side of a patch in pixels.
        channels: of the image.
        dim, num_heads, num_blocks: of the transformer.

    Source: row 3, a 2026 paper on registers in representation autoencoders whose text we could not find; sizes and details
    are ours.
    """

    def __init__(
        self,
        input_dim: int,
        *,
        num_registers: int,
        grid: tuple[int, int],
        patch: int,
        channels: int = 3,
        dim: int = 64,
        num_heads: int = 4,
        num_blocks: int = 2,
    ):
        super().__init__()
        self.grid, self.patch = grid, patch
        self.patch_proj = nn.Linear(input_dim, dim)
        self.position = nn.Parameter(0.02 * torch.randn(grid[0] * grid[1], dim))
        if num_registers:
            self.register_proj = nn.Linear(input_dim, dim)
            self.slot = nn.Parameter(0.02 * torch.randn(num_registers, dim))
        self.num_registers = num_registers
        self.blocks = nn.ModuleList(PreNormBlock(dim, num_heads) for _ in range(num_blocks))
        self.norm, self.pixels = nn.LayerNorm(dim), nn.Linear(dim, channels * patch**2)

    def forward(
        self,
        patches: Float[Tensor, "images patches input_dim"],
        registers: Float[Tensor, "images registers input_dim"] | None = None,
        *,
        register_mask: Bool[Tensor, "images registers"] | None = None,
    ) -> Float[Tensor, "images channels height width"]:
        """The images.

        Args:
            registers: without them the patches are decoded alone.
            register_mask: True = may be attended to.
        """
        n = self.grid[0] * self.grid[1]
        if patches.shape[1] != n:
            raise ValueError(f"a grid of {self.grid} has {n} patches, got {tuple(patches.shape)}")
        x, key_mask = self.patch_proj(patches) + self.position, None
        if registers is not None:
            if registers.shape[1] != self.num_registers:
                raise ValueError(f"this decoder takes {self.num_registers} registers, got {tuple(registers.shape)}")
            x = torch.cat([x, self.register_proj(registers) + self.slot], 1)
            if register_mask is not None:
                key_mask = nn.functional.pad(register_mask, (n, 0), value=True)
        for block in self.blocks:
            x = block(x, key_mask)
        pixels = self.pixels(self.norm(x[:, :n]))
        return rearrange(
            pixels, "b (h w) (c p q) -> b c (h p) (w q)", h=self.grid[0], p=self.patch, q=self.patch
        )
