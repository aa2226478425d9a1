"""The first occurrence of each glossary term on a page becomes a link that shows the term's sentence on hover."""

import re

from docutils import nodes
from sphinx import addnodes

GLOSSARY = "book/reference/glossary"
#: Text below these is left alone: it is code, a formula, a link already, a heading, or the title of somebody's work.
_NOT_IN = (nodes.literal, nodes.literal_block, nodes.reference, nodes.title, nodes.math, nodes.raw, nodes.caption, nodes.citation, addnodes.pending_xref, nodes.label)


def link_terms(app, doctree, docname: str) -> None:
    if app.builder.format != "html" or GLOSSARY not in app.env.all_docs or docname == GLOSSARY:
        return
    terms = definitions(app.env)
    if not terms:
        return
    pattern = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, sorted(terms, key=len, reverse=True)))})(e?s)?(?![\w-])", re.IGNORECASE)
    address = app.builder.get_relative_uri(docname, GLOSSARY)
    seen: set[str] = set()
    for text in list(doctree.findall(nodes.Text)):
        if _is_prose(text):
            _replace(text, pattern, terms, address, seen)


def definitions(env) -> dict[str, tuple[str, str]]:
    """Term in lower case -> its anchor and its sentence."""
    if not hasattr(env, "atlas_terms"):
        found = {}
        for item in env.get_doctree(GLOSSARY).findall(nodes.definition_list_item):
            for term in item.findall(nodes.term):
                said = next(item.findall(nodes.definition)).astext()
                found[term.astext().lower()] = (term["ids"][0], " ".join(said.split()))
        env.atlas_terms = found
    return env.atlas_terms


def forget(app, env, docnames) -> None:
    """The glossary may have changed."""
    vars(env).pop("atlas_terms", None)


def _is_prose(text: nodes.Text) -> bool:
    parent, in_paragraph = text.parent, False
    while parent is not None:
        if isinstance(parent, _NOT_IN):
            return False
        in_paragraph = in_paragraph or isinstance(parent, nodes.paragraph)
        parent = parent.parent
    return in_paragraph


def _replace(text: nodes.Text, pattern: re.Pattern, terms: dict, address: str, seen: set[str]) -> None:
    pieces: list[nodes.Node] = []
    words, done = text.astext(), 0
    for found in pattern.finditer(words):
        term = found[1].lower()
        if term not in seen:
            seen.add(term)
            anchor, said = terms[term]
            pieces += [nodes.Text(words[done : found.start()]), nodes.reference("", found[0], refuri=f"{address}#{anchor}", reftitle=said, internal=True, classes=["mh-term"])]
            done = found.end()
    if pieces:
        text.parent.replace(text, [*pieces, nodes.Text(words[done:])])
