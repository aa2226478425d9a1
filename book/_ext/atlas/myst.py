"""A page's Markdown as text and directives, as far as turning it into plain Markdown needs."""

import re
from dataclasses import dataclass, field

import yaml

_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,}|:{3,})(?P<info>.*)$")
_DIRECTIVE = re.compile(r"^\{(?P<name>[\w:+-]+)\}\s*(?P<argument>.*)$")
_OPTION = re.compile(r"^:([\w-]+):\s*(.*)$")


@dataclass
class Directive:
    name: str
    argument: str
    options: dict[str, str]
    body: str
    indent: str = ""

    @property
    def label(self) -> str:
        return self.options.get("label") or self.options.get("name") or ""


@dataclass
class Verbatim:
    """A code fence: nothing in it is markup."""

    text: str


@dataclass
class Text:
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def parse(text: str) -> list[Text | Verbatim | Directive]:
    """Split Markdown into plain text, code fences and directives. Directives inside of a directive stay in its body."""
    lines, blocks, at = text.split("\n"), [], 0
    while at < len(lines):
        opened = _FENCE.match(lines[at])
        end = _closing(lines, at, opened) if opened else None
        if end is None:
            if not blocks or not isinstance(blocks[-1], Text):
                blocks.append(Text())
            blocks[-1].lines.append(lines[at])
            at += 1
            continue
        directive = _DIRECTIVE.match(opened["info"].strip())
        if directive:
            body = [line.removeprefix(opened["indent"]) for line in lines[at + 1 : end]]
            options, body = _options(body)
            blocks.append(Directive(directive["name"], directive["argument"].strip(), options, "\n".join(body).strip("\n"), opened["indent"]))
        else:
            blocks.append(Verbatim("\n".join(lines[at : end + 1])))
        at = end + 1
    return blocks


def _closing(lines: list[str], start: int, opened: re.Match) -> int | None:
    char, length = opened["fence"][0], len(opened["fence"])
    if char == ":" and not _DIRECTIVE.match(opened["info"].strip()):
        return None
    for number in range(start + 1, len(lines)):
        line = lines[number].strip()
        if len(line) >= length and set(line) == {char}:
            return number
    return None


def _options(body: list[str]) -> tuple[dict[str, str], list[str]]:
    if body and body[0].strip() == "---":
        end = next((number for number, line in enumerate(body[1:], 1) if line.strip() == "---"), None)
        if end:
            values = yaml.safe_load("\n".join(body[1:end])) or {}
            return {key: str(value) for key, value in values.items()}, body[end + 1 :]
    options = {}
    while body and (option := _OPTION.match(body[0].strip())):
        options[option[1]] = option[2].strip()
        body = body[1:]
    return options, body
