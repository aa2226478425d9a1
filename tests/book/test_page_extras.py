"""What stands below a chapter, its structured data, and the citation file."""

import json
from types import SimpleNamespace

import mhlib
import yaml
from atlas import page_extras
from atlas.project import Project
from bs4 import BeautifulSoup
from mhlib import catalog

PROJECT = Project.here()


def test_footer_leads_to_catalogue_and_api_and_installs():
    footer = BeautifulSoup(page_extras.footer(PROJECT, "book/heads/sharing", [catalog.paper(33)]), "html.parser")
    links = [link["href"] for link in footer.find_all("a")]
    assert links == ["../reference/catalogue.html#row-33", "../reference/api/heads-sharing.html#mhlib.heads.MultiQueryAttention"]
    assert footer.find("pre").text == f'pip install "mhlib @ git+{PROJECT.repository.url}"'


def test_structured_data_names_the_papers():
    project = SimpleNamespace(repository=PROJECT.repository)
    data = page_extras.structured(project, "book/heads/sharing", "Sharing </script>", [catalog.paper(33)])
    assert data["citation"] == [{"@type": "ScholarlyArticle", "name": catalog.paper(33).title, "datePublished": "2019", "url": "https://arxiv.org/abs/1911.02150"}]
    context = {"title": "Sharing </script>", "body": "", "pathto": lambda name, resource: name}
    page_extras.add(SimpleNamespace(srcdir=PROJECT.root), "book/no-such-page", "", context, doctree=object())
    first, script = context["metatags"].splitlines()
    assert first == '<script src="_static/first.js"></script>' and script.count("</script>") == 1
    assert json.loads(script.partition(">")[2].rpartition("</script>")[0])["headline"] == "Sharing </script>"


def test_citation_file_names_this_version():
    citation = yaml.safe_load((PROJECT.root / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == mhlib.__version__ and citation["license"] == "MIT" and citation["authors"]
