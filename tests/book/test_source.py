"""The source that chapters print is the tested one, cut to what differs."""

import ast
import functools
import inspect

import pytest
from mhlib.book import source


def register(**_):
    return lambda thing: thing


class Parent:
    limit = 1

    def score(self, q):
        return q

    def merge(self, heads):
        return heads


@register(
    name="child",
    papers=[33],
)
class Child(Parent):
    """A child.

    With a long story.
    """

    note = "new"
    limit = 2

    def score(self, q):
        """Says what it does."""
        # why twice
        return 2 * q

    def helper(self):
        return None

    @property
    def merge(self):
        """Docs."""

        return self.helper


class Nothing(Parent):
    """Only a docstring."""


@functools.cache
def function(a: int) -> int:
    """Docstring."""
    return a + 1  # a comment


def only_docs():
    """This is all there is."""


def test_class_is_shown_as_its_difference():
    assert str(source(Child)).splitlines()[1:] == [
        "class Child(Parent):",
        "    limit = 2",
        "",
        "    def score(self, q):",
        "        # why twice",
        "        return 2 * q",
        "",
        "    @property",
        "    def merge(self):",
        "        return self.helper",
    ]


def test_names_select():
    text = str(source(Child, "helper", "note"))
    assert "def helper" in text and 'note = "new"' in text
    assert "score" not in text


def test_class_that_overrides_nothing():
    assert str(source(Nothing)).splitlines()[1:] == ["class Nothing(Parent):", "    pass"]


def test_function_without_docstring_and_decorator():
    assert str(source(function)).splitlines()[1:] == ["def function(a: int) -> int:", "    return a + 1  # a comment"]


def test_a_docstring_that_is_all_there_is_stays():
    ast.parse(str(source(only_docs)))


def test_method():
    assert "return 2 * q" in str(source(Child.score))


def test_what_is_shown_stands_in_the_file_as_it_is():
    from mhlib.heads import MultiHeadAttention

    shown = str(source(MultiHeadAttention, "score"))
    ast.parse(shown)
    lines = set(inspect.getsource(MultiHeadAttention).splitlines())
    assert shown.startswith("# mhlib/heads/base.py\n")
    assert set(shown.splitlines()[1:]) <= lines | {""}


def test_shown_as_highlighted_markdown_with_a_plain_fallback():
    bundle = source(function)._repr_mimebundle_()
    assert bundle["text/markdown"] == f"```python\n{bundle['text/plain']}\n```"


def test_errors():
    with pytest.raises(ValueError, match="does not define scores; it defines note, limit, score, helper, merge"):
        source(Child, "scores")
    with pytest.raises(ValueError, match="function is not a class"):
        source(function, "score")
