"""Exercises of the chapter on queries that explain."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mhlib.exercises.declare import Random, exercise


def _class_cases(random: Random):
    for heads, tokens, d, dim in ((2, 3, 2, 3), (2, 4, 3, 5), (4, 7, 2, 4), (3, 5, 4, 12)):
        yield random.weights(heads, tokens), random.normal(heads, tokens, d), random.normal(dim, heads * d), random.normal(dim)


def _read(w_o: Tensor, presence: Tensor, heads: int) -> Tensor:
    """How the presence vector reads the values of each head (heads, d)."""
    return (presence @ w_o).unflatten(0, (heads, -1))


def _contributions(weights: Tensor, values: Tensor, read: Tensor) -> Tensor:
    return weights * (values @ read[:, :, None])[..., 0]


@exercise(
    "logit_contributions",
    cases=_class_cases,
    mistakes=(
        (
            "These are the scores of the tokens, the same for all classes; multiply by how much this class looked at them.",
            lambda weights, values, w_o, presence: (values @ _read(w_o, presence, len(weights))[:, :, None])[..., 0],
        ),
        (
            "The heads are added up; keep one row for each.",
            lambda weights, values, w_o, presence: _contributions(weights, values, _read(w_o, presence, len(weights))).sum(0),
        ),
        (
            "Head h owns columns h d to (h + 1) d of W_O: neighbours, not every H-th column.",
            lambda weights, values, w_o, presence: _contributions(
                weights, values, (presence @ w_o).unflatten(0, (-1, len(weights))).T
            ),
        ),
        (
            "The presence vector is missing: it turns what was found, a vector, into a number.",
            lambda weights, values, w_o, presence: _contributions(
                weights, values, _read(w_o, torch.ones_like(presence), len(weights))
            ),
        ),
    ),
)
def logit_contributions(
    weights: Float[Tensor, "heads tokens"],
    values: Float[Tensor, "heads tokens d"],
    w_o: Float[Tensor, "dim heads_d"],
    presence: Float[Tensor, " dim"],
) -> Float[Tensor, "heads tokens"]:
    """What each token adds to one class's logit in each head; their sum is the logit, its bias apart."""
    return _contributions(weights, values, _read(w_o, presence, len(weights)))


def _people_cases(random: Random):
    for people, d in ((2, 2), (4, 3), (5, 4), (7, 2)):
        yield random.normal(people, d), random.mask(2, people)[0]


def _joint_mean(values: Tensor, present: Tensor) -> Tensor:
    return (values * present[:, None]).sum(0) / (present.sum() + 1)


@exercise(
    "first_look_of_a_joint_token",
    cases=_people_cases,
    mistakes=(
        (
            "The joint token sees itself too, with a value of zero: divide by one more.",
            lambda values, present: (values * present[:, None]).sum(0) / present.sum(),
        ),
        ("People who are absent are counted.", lambda values, present: values.sum(0) / (len(values) + 1)),
        (
            "Absent people add nothing, but they still take a share of the weight; leave them out of the count as well.",
            lambda values, present: (values * present[:, None]).sum(0) / (len(values) + 1),
        ),
        ("present is True for those who are there.", lambda values, present: _joint_mean(values, ~present)),
    ),
)
def first_look_of_a_joint_token(
    values: Float[Tensor, "people d"], present: Bool[Tensor, " people"]
) -> Float[Tensor, " d"]:
    """What a joint token whose query and value are zero gathers in its first layer."""
    return _joint_mean(values, present)
