"""What the contracts of several kinds share."""

import copy
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import Any

import jaxtyping
import torch
from torch import Tensor, nn

#: A contract is a list of checks ``check(mechanism)`` that raise AssertionError; each becomes one test per mechanism.
Check = Callable[[Any], None]


def tokens(dim: int, *, batch: int = 2, length: int = 6, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, length, dim, dtype=dtype)


def perturbed(layer: nn.Module, by: float = 0.1) -> nn.Module:
    """The layer in float64 and eval mode, moved off its start: zeros and ones at the start hide faults."""
    layer = layer.double().eval()
    with torch.no_grad():
        for p in layer.parameters():
            p += by * torch.randn_like(p)
    return layer


def close(a: Any, b: Any, what: str, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance, msg=lambda text: f"{what}: {text}")


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors and numbers in nested containers, as tensors."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, bool | int | float):
        return [torch.tensor(value)]
    if isinstance(value, Mapping):
        value = list(value.values())
    elif hasattr(value, "__dataclass_fields__"):
        value = [getattr(value, name) for name in value.__dataclass_fields__]
    if isinstance(value, list | tuple | set):
        return [t for item in value for t in tensors_in(item)]
    return []


def gradcheck(call: Callable[..., Tensor], layer: nn.Module, x: Tensor) -> None:
    """Numerical against analytical gradients, of the input and of every parameter."""
    parameters = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    assert torch.autograd.gradcheck(
        lambda x, *values: call(dict(zip(parameters, values)), x),
        (x.requires_grad_(), *parameters.values()),
        fast_mode=True,
    )


def unchanged(module: nn.Module) -> Callable[[], None]:
    """Remember a module; the returned function asserts that it is still the same."""
    before = copy.deepcopy(module.state_dict())

    def check() -> None:
        for name, value in module.state_dict().items():
            assert torch.equal(value, before[name]), f"{name} of the input was changed"

    return check


def finite(value: Any, what: str) -> None:
    found = tensors_in(value)
    assert found, f"{what} holds no numbers"
    assert all(t.isfinite().all() for t in found if t.is_floating_point()), f"{what} is not finite"


@contextmanager
def as_a_user():
    """Without the shape checks of the test session, so that the library's own errors are seen."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def raises(error: type[Exception] | tuple[type[Exception], ...], call: Callable[[], Any], *words: str) -> None:
    """The call raises that error, and its text names each of the words."""
    try:
        with as_a_user():
            call()
    except error as e:
        missing = [word for word in words if word not in str(e)]
        assert not missing, f"the error should name {missing}, it says: {e}"
    else:
        raise AssertionError(f"expected {error}, but the call went through")

