"""The Sphinx extension: execute and generate first, then let Sphinx render; so plain `jupyter-book build .` does everything."""

import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from sphinx_sitemap import add_html_link

from atlas import bibliography_page, generate, mathjax, notebooks, page_extras, terms
from atlas.chapter import Chapter
from atlas.inputs import digest
from atlas.project import Project

_MODULES = re.compile(r"~?\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])")


def prepare(app, config) -> None:
    """Before anything is read: bring chapters, generated pages, notebooks and MathJax's files up to date."""
    project = Project(Path(app.srcdir))
    # In a process of its own, which owns the kernels, its working folder and what Ctrl-C does.
    tools = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, str(tools), "execute", str(project.root)], check=False)
    if done.returncode:
        raise SystemExit(done.returncode)  # the reason has been printed
    generate.write_pages(project)
    notebooks.write(project)
    mathjax.lay_out(project)
    config.html_baseurl = config.ogp_site_url = project.repository.site
    config.notfound_urls_prefix = urlsplit(project.repository.site).path  # 404.html is shown at any depth, so its links name the whole path


def fill_in_address(app, docname: str, source: list[str]) -> None:
    """Pages write %REPOSITORY%, and %COLAB(page)% for a page's notebook, where addresses belong; `_config.yml` alone knows them."""
    repository = Project(Path(app.srcdir)).repository
    text = source[0].replace("%REPOSITORY%", repository.url)
    source[0] = re.sub(r"%COLAB\((.+?)\)%", lambda found: repository.colab(found[1]), text)


def outdated(app, env, added, changed, removed) -> list[str]:
    """Pages that Sphinx takes for unchanged, but whose executed results, or the tools that render them, are new."""
    project = Project(Path(app.srcdir))
    tools = [digest(file) for file in sorted(Path(__file__).parent.glob("*.py"))]
    before = getattr(env, "atlas_results", {})
    now = {doc: [digest(project.executed / f"{doc}.ipynb"), *tools] for doc in env.found_docs}
    env.atlas_results = now
    stale = [doc for doc in now if now[doc] != before.get(doc)]
    if any(doc.startswith(generate.API) for doc in {*stale, *added, *changed, *removed}):
        # Sphinx writes a source listing anew only when the source has changed, though its links may have.
        shutil.rmtree(Path(app.outdir) / "_modules", ignore_errors=True)
    return stale


def buttons(app, pagename, templatename, context, doctree) -> None:
    """Colab and download buttons of a chapter; both give the notebook that was made for Colab."""
    project = Project(Path(app.srcdir))
    notebook = project.notebooks / f"{pagename}.ipynb"
    if not notebook.is_file() or not Chapter(project, pagename).path.is_file():
        return
    target = Path(app.outdir) / "_sources" / f"{pagename}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(notebook.read_bytes())
    context["ipynb_source"] = f"{pagename}.ipynb"
    context["header_buttons"].insert(0, {
        "type": "link", "text": "Colab", "label": "open-colab", "tooltip": "Open in Colab", "icon": "fas fa-rocket",
        "url": project.repository.colab(pagename),
    })


def no_edit_button(app, pagename, templatename, context, doctree) -> None:
    """A generated page has no source in the repository that one could edit."""
    if generate.is_generated(pagename):
        for group in context["header_buttons"]:
            if "buttons" in group:
                group["buttons"] = [button for button in group["buttons"] if button["label"] != "source-edit-button"]


def math_where_it_is(app, pagename, templatename, context, doctree) -> None:
    """Sphinx gives MathJax, a megabyte, to pages whose subpages hold formulas, too."""
    if 'class="math' not in context.get("body", ""):
        of_mathjax = ("mathjax/", "window.MathJax")
        context["script_files"] = [
            file for file in context["script_files"] if not any(mark in f"{file.filename}{file.attributes.get('body', '')}" for mark in of_mathjax)
        ]


def short_shapes(app, what, name, obj, options, signature, return_annotation):
    """Shapes of jaxtyping hold words that Sphinx cannot parse; it would then show every name with all its modules."""

    def short(text: str | None) -> str | None:
        return text and (_MODULES.sub("", text) if "jaxtyping." in text else text)

    return short(signature), short(return_annotation)


def complete_sitemap(app, exception) -> None:
    """Before sphinx-sitemap writes: it has collected the pages that this build has written, and the others are there, too."""
    if exception is None and app.builder.name == "html" and not app.sitemap_links.empty():
        while not app.sitemap_links.empty():
            app.sitemap_links.get_nowait()
        for doc in sorted(app.env.found_docs):
            add_html_link(app, doc, None, None, None)


def tidy(app, exception) -> None:
    """After a build: drop what should not be there, and add the files that are no pages."""
    out = Path(app.outdir)
    if exception is None and app.builder.name == "html":
        (out / "_static/scripts/fontawesome.js").write_text("")  # 1.5 MB a page would load for icons that a font already draws
        for source_map in (out / "_static").rglob("*.map"):  # of use to the theme's developers only
            source_map.unlink()
        # Sphinx copies these only when it writes a page.
        shutil.copytree(Path(app.srcdir) / "book/_assets", out / "_static", dirs_exist_ok=True)
        bibliography_page.write_bibtex(Project(Path(app.srcdir)), out)
        notebooks.write_archive(Project(Path(app.srcdir)), out)
        _remove_old_pages(app, out)
    if exception or app._warncount:
        # Sphinx warns only while it reads a page, so a second build of an unchanged tree would seem fine. Next time, read all again.
        (Path(app.doctreedir) / "environment.pickle").unlink(missing_ok=True)


def _remove_old_pages(app, out: Path) -> None:
    """Sphinx never deletes the HTML of a page that is gone."""
    for page in (out / "book").rglob("*.html"):
        if page.relative_to(out).with_suffix("").as_posix() not in app.env.found_docs:
            page.unlink()


def setup(app) -> dict:
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # the social cards ask for a weight that their font has under another name
    app.connect("config-inited", prepare, priority=100)
    app.connect("source-read", fill_in_address)
    app.connect("env-get-outdated", outdated)
    app.connect("html-page-context", buttons)
    app.connect("html-page-context", no_edit_button, priority=900)  # after the theme has added its buttons
    app.connect("html-page-context", page_extras.add)
    app.connect("html-page-context", page_extras.foot)
    app.connect("html-page-context", math_where_it_is, priority=900)  # after MathJax has been added
    app.connect("autodoc-process-signature", short_shapes)
    app.connect("env-before-read-docs", terms.forget)
    app.connect("doctree-resolved", terms.link_terms)
    app.connect("build-finished", complete_sitemap, priority=400)
    app.connect("build-finished", tidy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
