"""Docstrings of public names are valid reStructuredText, which the API pages need; found here before a build is."""

import importlib
import inspect
import io

import pytest
from atlas.api import Api
from atlas.project import Project
from docutils.core import publish_doctree
from docutils.nodes import literal
from docutils.parsers.rst import roles
from sphinx.ext.napoleon import Config, GoogleDocstring

API = Api.of(Project.here())
PATHS = [f"{page.package}.{name}" for page in API.pages for name in page.names]
ROLES = ("class", "func", "meth", "mod", "data", "attr", "exc", "obj")


@pytest.fixture(autouse=True, scope="module")
def references():
    for role in ROLES:
        roles.register_generic_role(role, literal)
    yield
    for role in ROLES:
        roles._roles.pop(role, None)


def complaints(text: str) -> str:
    heard = io.StringIO()
    ready = str(GoogleDocstring(inspect.cleandoc(text), Config(napoleon_use_ivar=True)))
    publish_doctree(ready, settings_overrides={"warning_stream": heard, "report_level": 2, "halt_level": 5})
    return heard.getvalue()


def documented(path: str):
    """A public object and, of a class, its own public members: name and docstring."""
    package, _, name = path.rpartition(".")
    obj = getattr(importlib.import_module(package), name)
    if isinstance(obj, type) or callable(obj):
        yield path, obj.__doc__
    if isinstance(obj, type):
        yield from ((f"{path}.{member}", value.__doc__) for member, value in vars(obj).items() if not member.startswith("_") and callable(value))


@pytest.mark.parametrize("page", API.pages, ids=lambda page: page.doc.rpartition("/")[2])
def test_docstrings_are_valid(page):
    faults = {}
    for name in page.names:
        for path, text in documented(f"{page.package}.{name}"):
            if text and (heard := complaints(text)):
                faults[path] = heard
    assert not faults


def test_a_fault_is_heard():
    assert "emphasis" in complaints("Shapes (*batch, tokens).")
    assert not complaints("Of :class:`Head`, :math:`x`.\n\nArgs:\n    x: a number.\n")


def test_every_public_class_and_function_says_what_it_is():
    without = [path for path in PATHS for name, text in documented(path) if name == path and not text]
    assert not without
