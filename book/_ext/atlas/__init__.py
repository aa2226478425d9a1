"""How the book is built: chapters are executed and cached, data pages are generated, and Sphinx only renders.

    project    where things lie, which pages there are, the repository's address
    chapter    one page's source, and the notebook in it
    inputs     what a chapter's results depend on besides its own code
    execute    one chapter through papermill
    run        all chapters whose results are out of date, two at a time
    facts      anchors and claims, gathered from the chapters for pages and tests
    generate   the pages that are written from data, in catalogue_page, ledger_page, differences_page,
               bibliography_page, api_pages
    api        which public names there are, and on which page each is described
    sortable   tables that can be searched, filtered and sorted; charts: bars; families: what families are called
    myst, references, degrade    MyST Markdown to Markdown that Colab can show
    notebooks  the notebooks for Colab
    mathjax    MathJax's files for the site
    extension  the Sphinx extension that does all of this on `jupyter-book build .`
    suite      `make test`, stage by stage
    browser    the Chromium that the site tests use
    environment    settings of the processes that all of these start
    terms      links from the words of a chapter to the glossary
    page_extras    what a chapter gets below its text, and metadata for search engines
    counts, compare_page, home, news    the pages that compare, and the first page
    lock       `make lock`
"""
