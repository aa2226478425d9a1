"""What is new: the chapters and mechanisms that were added last, by the repository's own history."""

import subprocess
from collections import defaultdict

from atlas.chapter import chapters, headings
from atlas.project import Project

DAYS = 5
PER_DAY = 12


def page(project: Project) -> str:
    """A list of days; without a history (an unpacked archive) a sentence that says so."""
    days = defaultdict(list)
    for path, day in added(project).items():
        if text := _what(project, path):
            days[day].append(text)
    if not days:
        return "This copy comes without the repository's history, which tells what is new.\n"
    return "\n".join(f"- **{day}**: {_few(days[day])}" for day in sorted(days, reverse=True)[:DAYS]) + "\n"


def added(project: Project) -> dict[str, str]:
    """Path -> day of the commit that added it, newest first; empty where there is no history, or only its end, which seems to add every file."""
    if _git(project, "rev-parse", "--is-shallow-repository").strip() == "true":
        return {}
    log = ("log", "--diff-filter=A", "--no-renames", "--name-only", "--format=%x00%cs")
    found: dict[str, str] = {}
    for commit in _git(project, *log, "--", "book", "mhlib/heads", "mhlib/pooling", "mhlib/outputs").split("\0")[1:]:
        day, *paths = commit.split("\n")
        found |= {path: day for path in paths if path}  # a file that came twice: its first day, which is listed last
    return found


def _git(project: Project, *arguments: str) -> str:
    """What git answers; nothing where there is no git or no repository."""
    try:
        return subprocess.run(["git", *arguments], cwd=project.root, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def _what(project: Project, path: str) -> str | None:
    doc = path.removesuffix(".md")
    chapter = next((chapter for chapter in chapters(project) if chapter.doc == doc), None)
    if chapter:
        title = next(title for _, title in headings(chapter.text) if title)
        return f"chapter [{title}](/{path})"
    module = path.removesuffix(".py").replace("/", ".")
    names = [m.name.replace("_", " ") for m in _mechanisms(project) if m.obj.__module__ == module]
    return ", ".join(names) or None


def _mechanisms(project: Project):
    from atlas.api import Api

    return Api.of(project).mechanisms.values()


def _few(texts: list[str]) -> str:
    texts = sorted(texts, key=lambda text: not text.startswith("chapter"))
    more = f" and {len(texts) - PER_DAY} more" if len(texts) > PER_DAY else ""
    return "; ".join(texts[:PER_DAY]) + more
