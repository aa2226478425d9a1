"""An environment like Colab's: torch, numpy, matplotlib and a kernel, with nothing of ours; made of copies from this environment."""

import importlib.metadata as metadata
import os
import shutil
import subprocess
import venv
from pathlib import Path

SHIPPED = ("torch", "numpy", "matplotlib", "ipykernel", "nbclient", "pip", "setuptools")
RUN = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
"""


def closure(names) -> set[str]:
    """Distributions that these need, themselves included, without any extra; what is not installed here is left out."""
    from packaging.requirements import Requirement

    found, waiting = {}, list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name not in found:
            try:
                found[name] = metadata.distribution(name)
            except metadata.PackageNotFoundError:
                continue
            needed = map(Requirement, found[name].requires or [])
            waiting += [r.name for r in needed if not r.marker or r.marker.evaluate({"extra": ""})]
    return set(found)


def _link(source: str, target: str) -> None:
    """A hard link where it can be: pip may then remove it without touching the original."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


class Colab:
    def __init__(self, folder: Path):
        venv.create(folder, symlinks=True)
        self.python = folder / "bin/python"
        self.site = next((folder / "lib").glob("python*/site-packages"))
        for name in closure(SHIPPED):
            distribution = metadata.distribution(name)
            for part in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__", "bin"}:
                source, target = Path(distribution.locate_file(part)), self.site / part
                if source.is_dir() and not target.exists():
                    shutil.copytree(source, target, copy_function=_link, ignore=shutil.ignore_patterns("__pycache__"))
                elif source.is_file() and not target.exists():
                    _link(str(source), str(target))

    def execute(self, notebook: Path) -> subprocess.CompletedProcess:
        """Run all cells in a kernel of this environment, away from the checkout."""
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
        settings = {"JUPYTER_PREFER_ENV_PATH": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore", "JUPYTER_PATH": ""}
        return subprocess.run([self.python, "-c", RUN, notebook], cwd=notebook.parent, env=clean | settings, capture_output=True, text=True, check=False)

    def torch(self) -> tuple[int, set[str]]:
        """Which torch there is: the file itself, and what is registered."""
        return (self.site / "torch/__init__.py").stat().st_ino, {path.name for path in self.site.glob("torch-*.dist-info")}
