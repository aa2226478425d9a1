"""The pages that are written from data. A generator takes the project and returns the page's Markdown; register it here."""

from atlas import catalogue_page, differences_page, ledger_page
from atlas.project import Project, write_if_changed

PAGES = {
    "book/reference/catalogue.md": catalogue_page.page,
    "book/reference/ledger.md": ledger_page.page,
    "book/reference/differences.md": differences_page.page,
}


def write_pages(project: Project) -> None:
    for path, page in PAGES.items():
        write_if_changed(project.root / path, page(project))
