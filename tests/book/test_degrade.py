"""MyST becomes Markdown that Colab shows, and nothing of the text is lost."""

import pytest
from atlas.degrade import Degrader
from atlas.project import Repository
from atlas.references import Citation, References, Target

REFERENCES = References(
    labels={
        "scaling": Target("book/heads/here", "Why scale"),
        "elsewhere": Target("book/pools/other", "Means"),
        "ex-scale": Target("book/heads/here", "Exercise 1 (Scale)", 1),
        "eq-softmax": Target("book/heads/here", "Equation 1", 1),
        "eq-far": Target("book/pools/other", "Equation 4", 4),
        "thm-max": Target("book/heads/here", "Theorem 1 (Bound)", 1),
        "fig-map": Target("book/heads/here", "Figure 1", 1),
    },
    citations={
        "vaswani2017attention": Citation("Vaswani et al.", "2017", "https://arxiv.org/abs/1706.03762"),
        "shazeer2019fast": Citation("Shazeer", "2019", None),
    },
    titles={"book/pools/other": "Other pools", "book/heads/here": "Here"},
)
REPOSITORY = Repository("https://github.com/someone/atlas", "main")
SITE = "https://someone.github.io/atlas/"


def degrade(text: str) -> str:
    return Degrader("book/heads/here", REFERENCES, REPOSITORY)(text)


@pytest.mark.parametrize(("myst", "plain"), [
    # roles
    ("as {cite:p}`vaswani2017attention` say", "as ([Vaswani et al., 2017](https://arxiv.org/abs/1706.03762)) say"),
    ("{cite}`vaswani2017attention,shazeer2019fast`", "([Vaswani et al., 2017](https://arxiv.org/abs/1706.03762); Shazeer, 2019)"),
    ("{cite:t}`shazeer2019fast` shows", "Shazeer (2019) shows"),
    ("see {ref}`scaling`", "see [Why scale](#scaling)"),
    ("see {ref}`this <elsewhere>`", f"see [this]({SITE}book/pools/other.html#elsewhere)"),
    ("{numref}`fig-map`", "[Figure 1](#fig-map)"),
    ("{numref}`Fig. %s <fig-map>`", "Fig. 1"),
    ("by {eq}`eq-softmax`", "by (1)"),
    ("by {eq}`eq-far`", f"by [Equation 4]({SITE}book/pools/other.html#eq-far)"),
    ("{prf:ref}`thm-max`", "[Theorem 1 (Bound)](#thm-max)"),
    ("{doc}`../pools/other`", f"[Other pools]({SITE}book/pools/other.html)"),
    ("{doc}`pools </book/pools/other>`", f"[pools]({SITE}book/pools/other.html)"),
    ("{math}`x^2` is $x^2$", "$x^2$ is $x^2$"),
    ("{py:class}`~mhlib.heads.Attention`", "`mhlib.heads.Attention`"),
    ("press {kbd}`Ctrl`", "press <kbd>Ctrl</kbd>"),
    # code is left alone
    ("`{ref}` and ``{cite}`x` ``", "`{ref}` and ``{cite}`x` ``"),
    ("```python\n{'a': 1}  # {ref}`scaling`\n(row-1)=\n```", "```python\n{'a': 1}  # {ref}`scaling`\n(row-1)=\n```"),
    # links
    ("[](#scaling)", "[Why scale](#scaling)"),
    ("[why](#elsewhere)", f"[why]({SITE}book/pools/other.html#elsewhere)"),
    ("[`mean`](../pools/other.md)", f"[`mean`]({SITE}book/pools/other.html)"),
    ("[x](../pools/other.md#elsewhere)", f"[x]({SITE}book/pools/other.html#elsewhere)"),
    ("[web](https://example.org/a.md)", "[web](https://example.org/a.md)"),
    ("![a map](map.png)", "![a map](https://raw.githubusercontent.com/someone/atlas/main/book/heads/map.png)"),
    # targets, comments, equations
    ("(row-33)=\n## Heading", '<a id="row-33"></a>\n## Heading'),
    ("one\n% not shown\ntwo", "one\ntwo"),
    ("$$\na = b\n$$ (eq-softmax)", "$$\na = b \\tag{1}\n$$"),
    ("```{math}\n:label: eq-softmax\na = b\n```", "$$\na = b \\tag{1}\n$$"),
    ("```{math}\na = b\n```", "$$\na = b\n$$"),
    # directives
    (":::{note}\nMind the *gap*.\n:::", "> **Note.**\n>\n> Mind the *gap*."),
    ("```{admonition} A {math}`k` case\n:class: tip\nBody.\n```", "> **A $k$ case**\n>\n> Body."),
    ("```{exercise} Scale\n:label: ex-scale\nTry {ref}`scaling`.\n```", '<a id="ex-scale"></a>\n\n**Exercise 1 (Scale).**\n\nTry [Why scale](#scaling).'),
    ("```{solution} ex-scale\nLike so.\n```", "<details><summary>Solution to Exercise 1 (Scale)</summary>\n\nLike so.\n\n</details>"),
    ("```{solution-start} ex-scale\n:class: dropdown\n```", "**Solution to [Exercise 1 (Scale)](#ex-scale)**"),
    ("```{solution-end}\n```", ""),
    (":::{prf:theorem} Bound\n:label: thm-max\n$a \\le b$\n:::", '<a id="thm-max"></a>\n\n**Theorem 1 (Bound).**\n\n$a \\le b$'),
    (":::{prf:proof}\nClear.\n:::", "*Proof.* Clear. ∎"),
    ("```{figure} map.png\n:alt: a map\n:name: fig-map\nThe *map*.\n```",
     '<a id="fig-map"></a>\n\n![a map](https://raw.githubusercontent.com/someone/atlas/main/book/heads/map.png)\n\n*Figure 1: The *map*.*'),
    ("```{code-block} python\n:linenos:\nx = 1\n```", "```python\nx = 1\n```"),
    ("```{dropdown} More\nHidden.\n```", "<details><summary>More</summary>\n\nHidden.\n\n</details>"),
    ("````{tab-set}\n```{tab-item} One\nA\n```\n```{tab-item} Two\nB\n```\n````", "**One**\n\nA\n**Two**\n\nB"),
    ("```{bibliography}\n```", ""),
    ("- item\n\n  ```{note}\n  Inside.\n  ```", "- item\n\n  > **Note.**\n  >\n  > Inside."),
])
def test_construct(myst, plain):
    assert degrade(myst) == plain


def test_directives_nest():
    text = "::::{admonition} Outer\n:::{note}\nInner {cite:t}`shazeer2019fast`.\n:::\n::::"
    assert degrade(text) == "> **Outer**\n>\n> > **Note.**\n> >\n> > Inner Shazeer (2019)."


def test_numbers_go_on_from_cell_to_cell():
    degrade = Degrader("book/heads/here", REFERENCES, REPOSITORY)
    exercise = "```{exercise}\nDo.\n```"
    assert [degrade(exercise)[:14] for _ in range(2)] == ["**Exercise 1.*", "**Exercise 2.*"]


def test_an_unknown_citation_is_an_error_that_names_page_and_key():
    with pytest.raises(ValueError, match=r"book/heads/here\.md cites nobody2020, which book/references\.bib does not hold"):
        degrade("{cite}`nobody2020`")
