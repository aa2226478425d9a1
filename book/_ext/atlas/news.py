"""What is new: the chapters and mechanisms that were added last, by the repository's own history."""

import subprocess
from collections import defaultdict

from atlas.api import Api
from atlas.cards import card
from atlas.chapter import chapters
from atlas.html import raw
from atlas.project import Project
from atlas.references import References

CHAPTERS = 6
DAYS = 3
PER_DAY = 12


def page(project: Project, doc: str) -> str:
    """The newest chapters as cards, and days with their mechanisms; without a history (an unpacked archive) a sentence that says so."""
    days = added(project)
    if not days:
        return "This copy comes without the repository's history, which tells what is new.\n"
    known = {f"{chapter.doc}.md": chapter for chapter in chapters(project)}
    newest = [(known[path], day) for path, day in days.items() if path in known][:CHAPTERS]
    references = References.of(project)
    cards = "\n".join(card(chapter, doc, f"new on {day}", references) for chapter, day in newest)
    return raw(f'<div class="mh-cards-grid">\n{cards}\n</div>\n{_mechanisms(Api.of(project), days, doc)}') + "\n"


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


def _mechanisms(api: Api, days: dict[str, str], doc: str) -> str:
    """A line for each of the last days."""
    by_day = defaultdict(list)
    for name, mechanism in api.mechanisms.items():
        if day := days.get(mechanism.obj.__module__.replace(".", "/") + ".py"):
            by_day[day].append(api.link(name, doc))
    lines = [f"<li>{day}: {_few(by_day[day])}</li>" for day in sorted(by_day, reverse=True)[:DAYS]]
    return f'<p>Mechanisms that came last:</p><ul>{"".join(lines)}</ul>' if lines else ""


def _few(links: list[str]) -> str:
    return ", ".join(links[:PER_DAY]) + (f" and {len(links) - PER_DAY} more" if len(links) > PER_DAY else "")
