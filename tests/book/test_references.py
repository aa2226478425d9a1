"""Labels and citations are found in the pages and the bibliography."""

from atlas.references import Citation, References, Target, citations


def test_citations(tmp_path):
    file = tmp_path / "references.bib"
    file.write_text(r"""
@article{one, author = {M\"uller, Jan}, title = {A}, year = {2019}, doi = {10.1/x}}
@article{two, author = {van der Berg, Ann and {\O}stby, Bo}, title = {B}, year = {2020}, url = {https://example.org}, eprint = {1}}
@article{many, author = {A, A and B, B and C, C}, title = {C}, year = {2021}, eprint = {2101.00001}}
@misc{none, title = {D}}
""")
    assert citations(file) == {
        "one": Citation("Müller", "2019", "https://doi.org/10.1/x"),
        "two": Citation("van der Berg and Østby", "2020", "https://example.org"),
        "many": Citation("A et al.", "2021", "https://arxiv.org/abs/2101.00001"),
        "none": Citation("none", "n.d.", None),
    }


def test_labels_and_titles(book):
    book.chapter("a", "x = 1", text="""\
        (row-33)=
        (again)=
        ## One head

        (words)=
        Some words.

        $$
        a
        $$ (eq-a)

        ```{exercise} Try
        :label: ex-try
        Do it.
        ```

        ```{exercise}
        Without a label.
        ```

        :::{note}
        ```{exercise}
        :label: ex-third
        Nested.
        ```
        :::

        ```python
        # (not-a-target)=
        ```
        """)
    book.contents("a")
    references = References.of(book.project)
    assert references.titles == {"book/index": "A small book", "book/a": "Chapter a"}
    assert references.labels == {
        "row-33": Target("book/a", "One head"),
        "again": Target("book/a", "One head"),
        "words": Target("book/a", "words"),
        "eq-a": Target("book/a", "Equation 1", 1),
        "ex-try": Target("book/a", "Exercise 1 (Try)", 1),
        "ex-third": Target("book/a", "Exercise 3", 3),
    }
