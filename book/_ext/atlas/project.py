"""Where things lie, which pages there are, and the repository's address."""

import functools
from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Project:
    root: Path

    @classmethod
    def here(cls) -> "Project":
        return cls(Path(__file__).resolve().parents[3])

    @property
    def build(self) -> Path:
        return self.root / "_build"

    @property
    def cache(self) -> Path:
        return self.build / ".jupyter_cache"

    @property
    def executed(self) -> Path:
        """Executed notebooks, one a chapter, at the chapter's own path."""
        return self.build / "executed"

    @property
    def notebooks(self) -> Path:
        """Notebooks for Colab, one a chapter, at the chapter's own path."""
        return self.build / "notebooks"

    def documents(self) -> list[str]:
        """Every page of `_toc.yml` in reading order, as Sphinx names it: relative to the root, without suffix."""
        toc = yaml.safe_load((self.root / "_toc.yml").read_text(encoding="utf-8"))
        return list(dict.fromkeys(self._walk(toc)))

    def _walk(self, entry):
        if isinstance(entry, list):
            for item in entry:
                yield from self._walk(item)
        elif isinstance(entry, dict):
            page = entry.get("root") or entry.get("file")
            if page:
                yield page.removesuffix(".md")
            if "glob" in entry:
                for path in sorted(self.root.glob(entry["glob"] + ".md")):
                    yield path.relative_to(self.root).with_suffix("").as_posix()
            for key in ("parts", "chapters", "sections", "subtrees", "entries"):
                yield from self._walk(entry.get(key))

    @functools.cached_property
    def repository(self) -> "Repository":
        config = yaml.safe_load((self.root / "_config.yml").read_text(encoding="utf-8"))
        return Repository(config["repository"]["url"].rstrip("/"), config["repository"]["branch"])


@dataclass(frozen=True)
class Repository:
    """Every address of the project, from the one in `_config.yml`."""

    url: str
    branch: str

    @property
    def slug(self) -> str:
        return self.url.removeprefix("https://github.com/")

    @property
    def site(self) -> str:
        owner, _, name = self.slug.partition("/")
        return f"https://{owner}.github.io/{name}/"

    @property
    def pip(self) -> str:
        return f"git+{self.url}"

    def page(self, doc: str) -> str:
        return f"{self.site}{doc}.html"

    def file(self, path: str) -> str:
        return f"{self.url}/blob/{self.branch}/{path}"

    def raw(self, path: str) -> str:
        return f"https://raw.githubusercontent.com/{self.slug}/{self.branch}/{path}"

    def colab(self, doc: str) -> str:
        return f"https://colab.research.google.com/github/{self.slug}/blob/notebooks/{doc}.ipynb"


def write_if_changed(path: Path, text: str) -> bool:
    """Leave a file's time alone when its text stays, so that nothing is rebuilt for nothing."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return True
