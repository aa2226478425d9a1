"""The worked example of the contribution page is a mechanism that passes its contract, in one file."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from contract import heads

from mhlib import registry

PAGE = Path(__file__).resolve().parents[2] / "book" / "contribute.md"


@pytest.fixture(scope="module")
def mechanism(tmp_path_factory):
    example = re.search(r'^```python\n(""".*?)^```', PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[1]
    file = tmp_path_factory.mktemp("heads") / "cosine.py"
    file.write_text(example, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("cosine", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield registry._REGISTERED.pop("cosine_attention")


@pytest.mark.parametrize("check", heads.CHECKS, ids=lambda check: check.__name__)
def test_the_example_fulfils_the_contract(mechanism, check):
    check(mechanism)


def test_its_reduction_holds(mechanism):
    ours, plain = (side.double().eval() for side in mechanism.reductions[0].build())
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    torch.testing.assert_close(ours(x), plain(x), atol=1e-6, rtol=1e-6)
