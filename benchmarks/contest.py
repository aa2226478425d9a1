"""One computation and those that do the same: are they equal, how long do they take in turn, how much memory do they hold?"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mhlib.experiments import in_turn, peak_memory

__all__ = ["Contest", "Result", "compare", "table"]

Run = Callable[[], Tensor]


@dataclass(frozen=True)
class Contest:
    """What is compared.

    Attributes:
        name: the mechanism.
        size: its sizes, in words.
        ours: computes it.
        peers: by name, computations of the same; they may be none.
        inputs: leaves; with them, one backward pass is part of the run and their gradients are compared too.
        tolerance: greatest difference, over the greatest number of ours or one.
        why: the reason where ours is slower by design, printed in that case.
    """

    name: str
    size: str
    ours: Run
    peers: dict[str, Run]
    inputs: tuple[Tensor, ...] = ()
    tolerance: float = 1e-4
    why: str = ""


@dataclass(frozen=True)
class Result:
    """One peer beside ours. `ratio` is the median of peer's time over ours within a round: above 1, ours is faster."""

    name: str
    size: str
    peer: str
    ours_ms: float
    peer_ms: float = float("nan")
    ratio: float = float("nan")
    ours_mb: float = float("nan")
    peer_mb: float = float("nan")
    difference: float = float("nan")
    note: str = field(default="")


def compare(
    contests: Iterable[Contest], *, repeats: int = 9, least: float = 0.02, memory: bool = True
) -> Iterator[Result]:
    """Run each contest; all runs of one take turns, see :func:`mhlib.experiments.in_turn`.

    Args:
        memory: measure the peak of each run as well.

    Raises:
        ValueError: a peer computes something else than ours.
    """
    for contest in contests:
        runs = [_whole(run, contest.inputs) for run in (contest.ours, *contest.peers.values())]
        differences = _differences(contest, [run() for run in runs])
        times = in_turn(*runs, repeats=repeats, least=least)
        medians = (1e3 * times.median(0).values).tolist()
        peaks = [peak_memory(run) / 1e6 if memory else float("nan") for run in runs]
        if not contest.peers:
            yield Result(contest.name, contest.size, "none", medians[0], ours_mb=peaks[0], note=contest.why)
        for i, peer in enumerate(contest.peers, 1):
            ratio = (times[:, i] / times[:, 0]).median().item()
            note = contest.why if ratio < 1 else ""
            yield Result(
                contest.name, contest.size, peer, medians[0], medians[i], ratio, peaks[0], peaks[i], differences[i - 1], note
            )


def _whole(run: Run, inputs: tuple[Tensor, ...]) -> Callable[[], list[Tensor]]:
    """The run as a list of its output and, with inputs, of their gradients."""

    def forward():
        with torch.no_grad():
            return [run()]

    def with_backward():
        y = run()
        return [y.detach(), *torch.autograd.grad(y.square().sum(), inputs)]

    return with_backward if inputs else forward


def _differences(contest: Contest, found: list[list[Tensor]]) -> list[float]:
    ours, *others = found
    differences = []
    for peer, theirs in zip(contest.peers, others):
        worst = max(
            ((a - b.reshape(a.shape)).abs().max() / a.abs().max().clamp_min(1)).item() for a, b in zip(ours, theirs)
        )
        if not worst <= contest.tolerance:
            raise ValueError(
                f"{contest.name} and {peer} differ by {worst:.2g}, more than {contest.tolerance:.2g}: they do not compute the "
                "same, so their times cannot be compared"
            )
        differences.append(worst)
    return differences


def table(results: Iterable[Result]) -> Iterator[str]:
    """The results as lines, one by one."""
    yield f"{'what':32}{'size':26}{'peer':24}{'ours':>10}{'peer':>10}{'peer/ours':>10}{'memory, MB':>16}"
    for r in results:
        alone = r.peer == "none"
        peer = f"{'':>20}" if alone else f"{r.peer_ms:7.3f} ms{r.ratio:9.2f}x"
        memory = f"{r.ours_mb:7.1f}" + ("" if alone else f" / {r.peer_mb:.1f}")
        yield f"{r.name:32}{r.size:26}{r.peer:24}{r.ours_ms:7.3f} ms{peer}{memory:>16}" + (f"  {r.note}" if r.note else "")
