"""The loss of a class token that learns labels and a distillation token that learns from a teacher."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from mhlib.registry import Example, Reduction, register

__all__ = ["distillation_token_loss"]


def _inputs(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    logits = {
        name: torch.randn(6, 5, dtype=torch.float64, generator=generator)
        for name in ("class_logits", "token_logits", "teacher_logits")
    }
    return {**logits, "labels": torch.randint(5, (6,), generator=generator)}


def _two_cross_entropies(**inputs) -> Tensor:
    return F.cross_entropy(inputs["class_logits"], inputs["labels"]) + F.cross_entropy(
        inputs["token_logits"], inputs["labels"]
    )


def _sure_teacher():
    """A teacher that is certain of the labels."""
    inputs = _inputs()
    inputs["teacher_logits"] = 1e4 * F.one_hot(inputs["labels"], 5).double()
    return lambda: distillation_token_loss(**inputs), lambda: _two_cross_entropies(**inputs)


def _hard():
    inputs = _inputs(1)
    decided = inputs["teacher_logits"].argmax(-1)
    return (
        lambda: distillation_token_loss(**inputs, hard=True),
        lambda: F.cross_entropy(inputs["class_logits"], inputs["labels"]) + F.cross_entropy(inputs["token_logits"], decided),
    )


@register(
    "distillation_token_loss",
    kind="function",
    family="pool-global",
    papers=(5,),
    example=lambda: Example(distillation_token_loss, {**_inputs(2), "temperature": 2.0}),
    reductions=(
        Reduction("a teacher that is sure of the labels: two cross-entropies with them", _sure_teacher),
        Reduction("hard=True: the two terms of DeiT, whose second label is what the teacher decides", _hard),
    ),
    peers=("torch",),
)
def distillation_token_loss(
    class_logits: Float[Tensor, "batch classes"],
    token_logits: Float[Tensor, "batch classes"],
    labels: Int[Tensor, " batch"],
    teacher_logits: Float[Tensor, "batch classes"],
    *,
    temperature: float = 1.0,
    hard: bool = False,
) -> Float[Tensor, ""]:
    r"""Loss of a student with a class token and a distillation token, mean over the batch:

    .. math:: -\log p_c(\mathrm{label}) - \sum_k \mathrm{softmax}_k(z_T / \tau) \log \mathrm{softmax}_k(z_t / \tau)

    Args:
        class_logits: from the class token's state; they learn the labels.
        token_logits: :math:`z_t` from the distillation token's state; they learn from the teacher.
        teacher_logits: :math:`z_T`; compute them without gradient, or the teacher learns too.
        temperature: tau; larger ones tell more about the classes that the teacher turned down.
        hard: learn the teacher's decision instead of its distribution, as DeiT does by default.

    DeiT halves both terms. Source: Mingote et al., arXiv 2111.03842 (row 5); Touvron et al., arXiv 2012.12877.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    target = teacher_logits.argmax(-1) if hard else (teacher_logits / temperature).softmax(-1)
    opinion = token_logits if hard else token_logits / temperature
    return F.cross_entropy(class_logits, labels) + F.cross_entropy(opinion, target)
