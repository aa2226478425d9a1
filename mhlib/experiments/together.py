"""Train several models of one architecture at once, say one for each seed: their weights are stacked, each step is one.

Differs from :func:`mhlib.experiments.train` in that small models keep the machine busy together instead of one by one.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["Together"]


class Together:
    """Models that are trained and called as one.

    Args:
        models: at least one, of the same architecture; they are copied.

    Each keeps its own weights; what is random inside (dropout) is drawn for each. Attention runs unfused, because the fused
    one would run model by model.
    """

    def __init__(self, models: Sequence[nn.Module]):
        if not models:
            raise ValueError("Together needs at least one model")
        if len({tuple((n, p.shape) for n, p in model.named_parameters()) for model in models}) > 1:
            raise ValueError("all models must have parameters of the same names and shapes")
        self.count = len(models)
        parameters, self.buffers = stack_module_state(list(models))
        self.parameters = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        self.skeleton = copy.deepcopy(models[0])

    def __call__(self, *inputs: Tensor | None) -> Tensor:
        """Outputs (models, ...) of inputs (models, ...), one for each; None is handed on."""

        def one(parameters, buffers, *given):
            return functional_call(self.skeleton, (parameters, buffers), given)

        axes = (0, 0, *(None if x is None else 0 for x in inputs))
        with sdpa_kernel(SDPBackend.MATH):
            return torch.vmap(one, in_dims=axes, randomness="different")(self.parameters, self.buffers, *inputs)

    def train(
        self,
        batches: Iterable[Any],
        steps: int,
        loss: Callable[["Together", Any], Float[Tensor, " models"]],
        *,
        lr: float = 1e-2,
    ) -> Float[Tensor, "steps models"]:
        """Train all with Adam; the learning rate rises to ``lr`` and falls to zero (one cycle). Returns the losses.

        Args:
            batches: at least ``steps`` of them, whatever ``loss`` takes.
            loss: ``loss(self, batch)`` gives one number a model; their gradients do not mix.

        Raises:
            ValueError: ``batches`` end too early, or a loss is not finite.
        """
        optimizer = torch.optim.Adam(self.parameters.values(), lr=lr, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
        self.skeleton.train()
        losses = []
        for step, batch in zip(range(steps), batches):
            values = loss(self, batch)
            if not values.isfinite().all():
                raise ValueError(f"a loss is not finite at step {step + 1}: {values.tolist()}; try a smaller lr than {lr}")
            optimizer.zero_grad(set_to_none=True)
            values.sum().backward()
            optimizer.step()
            schedule.step()
            losses.append(values.detach())
        self.skeleton.eval()
        if len(losses) < steps:
            raise ValueError(f"batches ended after {len(losses)} of {steps} steps; give an endless iterator or fewer steps")
        return torch.stack(losses)

    def model(self, i: int) -> nn.Module:
        """The i-th model by itself, with its present weights."""
        one = copy.deepcopy(self.skeleton)
        one.load_state_dict({name: t[i].detach() for name, t in (self.parameters | self.buffers).items()})
        return one
