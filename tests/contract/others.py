"""The contracts of functions, output heads, training recipes, analyses and systems; each registers an ``Example``."""

import copy

import torch
from contract.common import Check, close, finite, raises, tensors_in, tokens, unchanged
from torch import Tensor, nn

from mhlib.registry import Mechanism


def _tensors(inputs: dict) -> dict[str, Tensor]:
    return {name: value for name, value in inputs.items() if isinstance(value, Tensor) and value.is_floating_point()}


def runs_and_repeats(m: Mechanism) -> None:
    example = m.example()
    torch.manual_seed(0)
    first = tensors_in(example())
    finite(first, "the result")
    torch.manual_seed(0)
    for a, b in zip(first, tensors_in(example()), strict=True):
        assert torch.equal(a, b), "two runs from one seed differ"


def leaves_inputs_alone(m: Mechanism) -> None:
    example = m.example()
    before = copy.deepcopy({name: tensors_in(value) for name, value in example.inputs.items()})
    modules = [unchanged(value) for value in example.inputs.values() if isinstance(value, nn.Module)]
    example()
    for name, value in example.inputs.items():
        for a, b in zip(tensors_in(value), before[name], strict=True):
            assert torch.equal(a, b), f"{name} was changed"
    for check in modules:
        check()


def function_dtypes(m: Mechanism) -> None:
    example = m.example()
    want = example()
    got = example.run(**example.inputs | {name: value.float() for name, value in _tensors(example.inputs).items()})
    for a, b in zip(tensors_in(got), tensors_in(want), strict=True):
        if b.is_floating_point():
            assert a.dtype == torch.float32, f"float32 inputs gave {a.dtype}"
            close(a.double(), b, "float32 is far from float64", 1e-4)


def function_gradients(m: Mechanism) -> None:
    if m.gradient != "exact":
        return
    example = m.example()
    names, values = zip(*_tensors(example.inputs).items())
    call = lambda *values: tuple(tensors_in(example.run(**example.inputs | dict(zip(names, values)))))  # noqa: E731
    assert torch.autograd.gradcheck(call, [v.clone().requires_grad_() for v in values], fast_mode=True)


def function_strides(m: Mechanism) -> None:
    example = m.example()
    strided = {
        name: value.repeat_interleave(2, -1)[..., ::2] for name, value in _tensors(example.inputs).items() if value.ndim
    }
    assert any(not value.is_contiguous() for value in strided.values())
    for a, b in zip(tensors_in(example.run(**example.inputs | strided)), tensors_in(example()), strict=True):
        close(a, b, "non-contiguous inputs give another result")


FUNCTION_CHECKS: list[Check] = [runs_and_repeats, leaves_inputs_alone, function_dtypes, function_gradients, function_strides]


def output_head_batches(m: Mechanism) -> None:
    example = m.example()
    together = tensors_in(example())
    tensors = _tensors(example.inputs)
    size = next(iter(tensors.values())).shape[0]
    alone = [
        tensors_in(example.run(**example.inputs | {name: value[i : i + 1] for name, value in tensors.items()}))
        for i in range(size)
    ]
    for whole, *parts in zip(together, *alone, strict=True):
        close(torch.cat(parts), whole, "an item depends on the others of its batch")


OUTPUT_HEAD_CHECKS: list[Check] = [runs_and_repeats, leaves_inputs_alone, output_head_batches]


def training_gives_a_module_of_its_own(m: Mechanism) -> None:
    example = m.example()
    sources = [value for value in example.inputs.values() if isinstance(value, nn.Module)]
    assert sources, "a training recipe starts from a module among its inputs"
    result = example()
    assert isinstance(result, nn.Module), f"a training recipe returns a module, got {type(result).__name__}"
    checks = [unchanged(source) for source in sources]
    with torch.no_grad():
        for p in result.parameters():
            p.zero_()
    for check in checks:
        check()


def training_keeps_the_interface(m: Mechanism) -> None:
    example = m.example()
    source = next(value for value in example.inputs.values() if isinstance(value, nn.Module))
    x = tokens(source.dim, dtype=torch.float32)
    result = example()
    assert result(x).shape == source(x).shape, "the result maps tokens to another shape"
    finite(result(x), "the output of the result")


TRAINING_CHECKS: list[Check] = [leaves_inputs_alone, training_gives_a_module_of_its_own, training_keeps_the_interface]

ANALYSIS_CHECKS: list[Check] = [runs_and_repeats, leaves_inputs_alone]


def system_is_independent_of_the_devices(m: Mechanism) -> None:
    example = m.example()
    want = example.run(**example.inputs | {"shards": 1})
    for shards in (2, 3, 5, 8, 40):  # 40: more devices than work, some stay empty
        got = example.run(**example.inputs | {"shards": shards})
        for a, b in zip(tensors_in(got), tensors_in(want), strict=True):
            close(a, b, f"{shards} devices give another result than one")
    raises(ValueError, lambda: example.run(**example.inputs | {"shards": 0}), "shards", "0")


SYSTEM_CHECKS: list[Check] = [runs_and_repeats, leaves_inputs_alone, system_is_independent_of_the_devices]
