"""The worked example of the contribution page is a mechanism that passes its contract, in one file."""

import dataclasses
import importlib.util
import re
import textwrap
from pathlib import Path

import pytest
import torch
from contract import heads

from mhlib import registry
from mhlib.cost import StageCost, stages

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


def test_an_option_of_its_own_is_there_before_the_projections(mechanism):
    own = re.search(r"^```python\n(def __init__.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[1]
    code = "class Own(Base):\n" + textwrap.indent(own, "    ") + textwrap.indent(MAKE, "    ")
    space = {"Base": mechanism.obj}
    exec(code.replace("super()", "super(Own, self)"), space)
    assert (space["Own"](16, 4, start=3.0).temperature == 3).all()
    with pytest.raises(ValueError, match="start must be positive, got 0"):
        space["Own"](16, 4, start=0.0)


MAKE = """
def make_projections(self, bias):
    super().make_projections(bias)
    self.temperature.data.fill_(self.start)
"""


def test_what_the_page_names_is_there():
    text = PAGE.read_text(encoding="utf-8")
    fields = ", ".join(field.name for field in dataclasses.fields(StageCost))
    assert f"`StageCost({fields})`" in text
    for name in re.findall(r"`(\w+)\(", re.search(r"from the parts in.*", text, re.DOTALL)[0].split("\n- ")[0]):
        assert callable(getattr(stages, name)), name
    families = re.search(r"`FAMILIES` in `mhlib/registry.py` \((.*?)\.\.\.\)", text, re.DOTALL)[1]
    assert set(re.findall(r"`([\w-]+)`", families)) < set(registry.FAMILIES)
