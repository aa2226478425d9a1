"""The pages that are written from data. A generator takes the project and returns the page's Markdown; register it here."""

from atlas import api_pages, bibliography_page, catalogue_page, compare_page, differences_page, home, ledger_page
from atlas.project import Project, write_if_changed

PAGES = {
    "book/reference/catalogue.md": catalogue_page.page,
    "book/reference/ledger.md": ledger_page.page,
    "book/reference/differences.md": differences_page.page,
    "book/reference/bibliography.md": bibliography_page.page,
    "book/reference/compare-heads.md": compare_page.heads,
    "book/reference/compare-pools.md": compare_page.pools,
}
#: Folders whose pages are all generated, and what gives them: path -> Markdown.
API = api_pages.FOLDER
FOLDERS = {API: api_pages.pages}


def is_generated(doc: str) -> bool:
    return f"{doc}.md" in PAGES or any(doc == folder or doc.startswith(f"{folder}/") for folder in FOLDERS)


def write_pages(project: Project) -> None:
    for path, page in PAGES.items():
        write_if_changed(project.root / path, page(project))
    for path, text in home.parts(project).items():
        write_if_changed(project.root / path, text)
    for folder, pages in FOLDERS.items():
        written = pages(project)
        for path, text in written.items():
            write_if_changed(project.root / path, text)
        for left in {file.relative_to(project.root).as_posix() for file in (project.root / folder).glob("*.md")} - set(written):
            (project.root / left).unlink()
