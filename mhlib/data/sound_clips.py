"""Clips like sound: spectral bands over time, in which events of several kinds begin and end. Made, not recorded."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["SoundClips", "sound_clips"]


class SoundClips(NamedTuple):
    """Clips with weak labels, which kinds of events occur, and strong ones, in which frames they do.

    Attributes:
        x: energies (clips, frames, bands).
        labels: 1.0 where a kind occurs in a clip (clips, kinds).
        frames: True where it does in a frame (clips, frames, kinds): for evaluation, not for training.
    """

    x: Float[Tensor, "clips frames bands"]
    labels: Float[Tensor, "clips kinds"]
    frames: Bool[Tensor, "clips frames kinds"]


def sound_clips(
    clips: int,
    *,
    frames: int = 100,
    bands: int = 16,
    kinds: int = 3,
    length: tuple[int, int] = (10, 30),
    loudness: float = 1.0,
    seed: int = 0,
) -> SoundClips:
    """Noise with events: each kind occurs in half of the clips, once, for ``length`` frames, at a random time.

    The spectrum of a kind is normal over the bands, of unit length times the root of ``bands``, and the same for all
    seeds; events fade in and out over three frames and differ in loudness by a factor of up to 1.5 either way. Noise is
    standard normal, so one frame alone is doubtful.
    """
    shortest, longest = length
    if not 1 <= shortest <= longest <= frames:
        raise ValueError(f"length must be 1 to the {frames} frames of a clip, got {length}")
    spectra = torch.randn(kinds, bands, generator=torch.Generator().manual_seed(0))
    spectra = spectra / spectra.norm(dim=1, keepdim=True) * bands**0.5
    random = torch.Generator().manual_seed(seed)
    occurs = torch.rand(clips, kinds, generator=random) < 0.5
    lasts = torch.randint(shortest, longest + 1, (clips, 1, kinds), generator=random)
    begins = (torch.rand(clips, 1, kinds, generator=random) * (frames - lasts + 1)).long()
    since = torch.arange(frames)[None, :, None] - begins
    active = (since >= 0) & (since < lasts) & occurs[:, None]
    fade = ((torch.minimum(since, lasts - 1 - since) + 1) / 3).clamp(0, 1) * active
    loud = loudness * 1.5 ** (2 * torch.rand(clips, 1, kinds, generator=random) - 1)
    x = (fade * loud) @ spectra + torch.randn(clips, frames, bands, generator=random)
    return SoundClips(x, occurs.float(), active)
