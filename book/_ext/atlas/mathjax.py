"""MathJax's files for the site, from the environment, so that formulas show without a network."""

import importlib.util
import shutil
from pathlib import Path

from atlas.project import Project

# The component that reads TeX and writes HTML, its fonts, the TeX extensions it may load, and its parts for screen readers.
_PARTS = ["tex-mml-chtml.js", "output/chtml/fonts", "input/tex/extensions", "sre", "a11y"]


def lay_out(project: Project) -> None:
    target = project.build / "vendor/mathjax"
    done = target / "complete"
    if done.exists():
        return
    package = importlib.util.find_spec("mathjax")  # what django-static-mathjax installs
    if package is None:
        raise ImportError("MathJax's files are missing: pip install django-static-mathjax (it is part of mhlib[book])")
    source = Path(package.origin).parent / "static/mathjax/es5"
    for part in _PARTS:
        if (source / part).is_dir():
            shutil.copytree(source / part, target / part, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / part, target / part)
    done.touch()
