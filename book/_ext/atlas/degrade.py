"""MyST Markdown to the plain Markdown that Colab and Jupyter show: nothing of the page's text is lost, only its dress."""

import posixpath
import re

from atlas.myst import Directive, Verbatim, parse
from atlas.project import Repository
from atlas.references import EQUATION, References, kind

_ADMONITIONS = {"note", "tip", "hint", "important", "warning", "caution", "danger", "error", "attention", "seealso", "admonition", "margin", "sidebar", "aside", "topic"}
_FOLDED = {"dropdown", "toggle", "details", "solution"}
_CODE = {"code-block", "code", "sourcecode"}
_DROPPED = {"bibliography", "tableofcontents", "contents", "toctree", "solution-end"}
_ROLE_OR_CODE = re.compile(r"(?P<role>\{(?P<name>[\w:+-]+)\})?(?<!`)(?P<ticks>`+)(?!`)(?P<text>.+?)(?<!`)(?P=ticks)(?!`)", re.DOTALL)
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)(?P<attributes>\{[^}]*\})?")
_TARGET_LINE = re.compile(r"^\(([^()\s]+)\)=\s*$", re.MULTILINE)
_COMMENT_LINE = re.compile(r"^%.*\n?", re.MULTILINE)
_WITH_TEXT = re.compile(r"^(?P<text>.*?)\s*<(?P<target>[^<>]+)>$", re.DOTALL)


class Degrader:
    """Turns the Markdown cells of one page into plain Markdown."""

    def __init__(self, doc: str, references: References, repository: Repository):
        self.doc, self.references, self.repository = doc, references, repository
        self.counts: dict[str, int] = {}

    def __call__(self, text: str) -> str:
        """Convert one Markdown cell. Cells must come in order, since exercises and equations are numbered."""
        parts = []
        for block in parse(text):
            if isinstance(block, Directive):
                parts.append("\n".join(block.indent + line if line else line for line in self._directive(block).split("\n")))
            else:
                parts.append(block.text if isinstance(block, Verbatim) else self._text(block.text))
        return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip("\n")

    # ---- directives

    def _directive(self, block: Directive) -> str:
        name, title = block.name, self._text(block.argument)
        if name in _DROPPED:
            return ""
        if name in _CODE:
            return f"```{block.argument}\n{block.body}\n```"
        if name == "raw":
            return block.body if block.argument == "html" else ""
        if name == "math":
            return f"$$\n{block.body}{self._tag() if block.label else ''}\n$$"
        if name in ("figure", "image"):
            return self._figure(block)
        if name == "solution-start":
            return f"**Solution to {self._refer(block.argument)}**"
        if name == "prf:proof":
            return f"*Proof.* {self(block.body)} ∎"
        if called := kind(name):
            heading = f"**{called} {self._next(called)}" + (f" ({title}).**" if title else ".**")
            return f"{self._anchor(block)}{heading}\n\n{self(block.body)}"
        if name in _FOLDED:
            summary = f"Solution to {self._refer(block.argument, plain=True)}" if name == "solution" else block.argument or "More"
            return f"<details><summary>{summary}</summary>\n\n{self(block.body)}\n\n</details>"
        if name in _ADMONITIONS:
            heading = title if name == "admonition" else f"{name.capitalize()}. {title}".strip()
            return "\n".join(f"> {line}".rstrip() for line in f"**{heading}**\n\n{self(block.body)}".split("\n"))
        return "\n\n".join(part for part in (f"**{title}**" if title else "", self(block.body)) if part)

    def _figure(self, block: Directive) -> str:
        image = f"![{block.options.get('alt', '')}]({self._file(block.argument)})"
        if block.name == "image" or not block.body:
            return image
        return f"{self._anchor(block)}{image}\n\n*Figure {self._next('Figure')}: {self(block.body)}*"

    def _anchor(self, block: Directive) -> str:
        return f'<a id="{block.label}"></a>\n\n' if block.label else ""

    def _next(self, called: str) -> int:
        self.counts[called] = self.counts.get(called, 0) + 1
        return self.counts[called]

    def _tag(self) -> str:
        return rf" \tag{{{self._next('Equation')}}}"

    # ---- inline

    def _text(self, text: str) -> str:
        text = _COMMENT_LINE.sub("", text)
        text = _TARGET_LINE.sub(r'<a id="\1"></a>', text)
        text = EQUATION.sub(lambda found: f"$${found['body'].rstrip()}{self._tag()}" + ("\n" if found["body"].endswith("\n") else "") + "$$", text)
        # What stands in code spans and what roles became is put aside, so that no link is looked for in it.
        aside: list[str] = []

        def put_aside(found: re.Match) -> str:
            aside.append(self._role(found["name"], found["text"].strip()) if found["role"] else found[0])
            return f"\0{len(aside) - 1}\0"

        text = _LINK.sub(self._link, _ROLE_OR_CODE.sub(put_aside, text))
        return re.sub(r"\0(\d+)\0", lambda found: aside[int(found[1])], text)

    def _role(self, name: str, text: str) -> str:
        if name.startswith("cite"):
            return self._cite(name, [key.strip() for key in text.split(",")])
        if name == "math":
            return f"${text}$"
        explicit = _WITH_TEXT.match(text)
        shown, target = (explicit["text"], explicit["target"]) if explicit else ("", text)
        if name == "eq":
            known = self.references.labels.get(target)
            return f"({known.number})" if known and known.doc == self.doc else self._refer(target)
        if name == "numref":
            known = self.references.labels.get(target)
            return shown.replace("%s", str(known.number)).replace("{number}", str(known.number)) if shown and known else self._refer(target)
        if name in ("ref", "prf:ref", "any"):
            return self._refer(target, shown)
        if name == "doc":
            return self._document(target, shown)
        if name in ("sub", "sup", "kbd"):
            return f"<{name}>{text}</{name}>"
        if name in ("term", "abbr", "emphasis", "strong", "download"):
            return shown or text
        return f"`{text.lstrip('~.!')}`"  # names of code objects, and what else is shown literally

    def _cite(self, name: str, keys: list[str]) -> str:
        known = self.references.citations
        if missing := [key for key in keys if key not in known]:
            raise ValueError(f"{self.doc}.md cites {', '.join(missing)}, which book/references.bib does not hold")
        textual = name in ("cite:t", "cite:ts")
        shown = []
        for citation in map(known.__getitem__, keys):
            text = f"{citation.authors} ({citation.year})" if textual else f"{citation.authors}, {citation.year}"
            shown.append(f"[{text}]({citation.link})" if citation.link else text)
        return ", ".join(shown) if textual else f"({'; '.join(shown)})"

    def _refer(self, label: str, shown: str = "", plain: bool = False) -> str:
        target = self.references.labels.get(label)
        text = shown or (target.text if target else label)
        if not target or plain:
            return text
        return f"[{text}](#{label})" if target.doc == self.doc else f"[{text}]({self.repository.page(target.doc)}#{label})"

    def _link(self, found: re.Match) -> str:
        target, text = found["target"], found["text"]
        if found["image"]:
            return f"![{text}]({self._file(target)})"
        if re.match(r"[a-z]+:", target):
            return f"[{text or target}]({target})"
        page, _, label = target.partition("#")
        if not page:
            return self._refer(label, text)
        return self._document(page, text, label) if page.endswith(".md") else f"[{text}]({self._file(page)})"

    def _document(self, page: str, shown: str, label: str = "") -> str:
        doc = self._absolute(page).removesuffix(".md")
        text = shown or (self.references.labels[label].text if label in self.references.labels else self.references.titles.get(doc, doc))
        return f"[{text}]({self.repository.page(doc)}{'#' + label if label else ''})"

    def _file(self, target: str) -> str:
        return target if re.match(r"[a-z]+:", target) else self.repository.raw(self._absolute(target))

    def _absolute(self, target: str) -> str:
        """A path as written on this page, from the root of the book."""
        return target.lstrip("/") if target.startswith("/") else posixpath.normpath(posixpath.join(posixpath.dirname(self.doc), target))
