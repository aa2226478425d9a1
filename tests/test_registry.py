"""The registry: complete entries, errors at the point of the mistake, lazy discovery."""

import inspect
import subprocess
import sys

import pytest

import mhlib
from mhlib import catalog, registry


def test_entries_are_complete():
    for m in registry.mechanisms().values():
        assert m.reductions or m.peers, f"{m.name} is checked against nothing independent"
        assert m.kind != "head" or m.stage, f"{m.name} names no stage"
        doc = inspect.getdoc(m.obj)
        assert doc and len(m.title) < 160, f"{m.name} needs a docstring that opens with what it is"
        assert not m.papers or f"row {m.papers[0]}" in doc or f"row {m.papers[0]}" in inspect.getmodule(m.obj).__doc__, (
            f"the docstring of {m.name} names no catalogue row"
        )


def test_every_mechanism_is_importable_by_its_path():
    for m in registry.mechanisms().values():
        value = mhlib
        for part in m.path.split(".")[1:]:
            value = getattr(value, part)
        assert value is m.obj, m.path


def test_find_names_the_nearest():
    assert registry.find("multi_head_attention").obj is mhlib.heads.MultiHeadAttention
    with pytest.raises(KeyError, match="did you mean grouped_query_attention"):
        registry.find("groupd_query_attention")


@pytest.mark.parametrize(
    "options, match",
    [
        (dict(kind="layer"), "kind must be one of head, pool.*got 'layer'"),
        (dict(family="no-such-family"), "family must be one of core, .*got 'no-such-family'"),
        (dict(papers=(33, 999)), "papers must be row numbers of the catalogue, 1 to 285, got 999; leave papers out"),
        (dict(papers=("194",)), "1 to 285, got '194'"),
        (dict(properties=("fast",)), "properties must be among causal.*got fast"),
        (dict(gradient="yes"), "gradient must be 'exact'.*got 'yes'"),
    ],
)
def test_mistakes_are_told_at_registration(options, match, as_a_user):
    with pytest.raises(ValueError, match=match):
        registry.register("x", **dict(kind="head", family="core", example=object) | options)


def test_families_and_rows_are_those_of_the_catalogue():
    assert set(registry.FAMILIES) == {paper.family for paper in catalog.papers()}
    assert [paper.n for paper in catalog.papers()] == list(range(1, registry.ROWS + 1))
    code = "import sys, mhlib.heads; mhlib.heads.MultiHeadAttention; print('mhlib.catalog.papers' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False", "registering a mechanism reads the catalogue"


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="'multi_head_attention' is registered twice"):
        registry.register("multi_head_attention", kind="head", family="core", example=object)(int)


def test_importing_one_mechanism_imports_no_other():
    code = "import sys; from mhlib.heads import MultiQueryAttention; print('\\n'.join(m for m in sys.modules if m.startswith('mhlib')))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "mhlib.heads.sharing.grouped_query" in run.stdout and "latent.multi_head_latent" not in run.stdout
