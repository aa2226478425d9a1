"""Which mechanisms a chapter runs, whether or not it explains a row of theirs."""

import functools
import re

from atlas.api import Api
from atlas.chapter import chapters
from atlas.project import Project


@functools.cache
def shown(project: Project) -> dict[str, str]:
    """Mechanism -> the first chapter whose code names it."""
    code = [(chapter.doc, "\n".join(cell.source for cell in chapter.notebook().cells if cell.cell_type == "code")) for chapter in chapters(project)]
    names = {name: re.compile(rf"\b{re.escape(mechanism.path.rpartition('.')[2])}\b") for name, mechanism in Api.of(project).mechanisms.items()}
    return {name: doc for name, pattern in names.items() for doc in [next((doc for doc, text in code if pattern.search(text)), None)] if doc}
