"""`make test`, stage by stage: library, kernels, chapters, site. A stage whose inputs have not changed since it passed is not run again."""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

from atlas import browser
from atlas.environment import JOBS, settle
from atlas.execute import CELL_SECONDS
from atlas.inputs import digest
from atlas.project import Project

PYTEST = [sys.executable, "-m", "pytest", "--quiet"]
PARALLEL = ["-n", str(JOBS), "--dist", "loadscope"]
VISITS = "tests/site/test_colab.py"
TOOLS = Path(__file__).resolve().parents[1]


class Suite:
    def __init__(self, project: Project):
        self.project = project

    def run(self) -> int:
        stages = [self.library, self.kernels, self.chapters, self.notebooks, self.site, self.browser, self.visits]
        return next((code for stage in stages if (code := stage())), 0)

    def library(self) -> int:
        inputs = ["mhlib", "tests", "benchmarks", "book/_ext", "constraints.txt", "pyproject.toml", "Makefile", "environment.yml", "README.md", "book/index.md", ".github"]
        elsewhere = ("tests/site", "tests/kernels")
        return self._stage("library tests", inputs, [*PYTEST, "tests", *(f"--ignore={path}" for path in elsewhere), *PARALLEL], without=elsewhere)

    def kernels(self) -> int:
        """Triton kernels in its interpreter, then compiled for devices that are not here: one process cannot do both."""
        if importlib.util.find_spec("triton") is None:
            return self._say("kernel tests", "not run, there is no triton for this system")
        numeric = "tests/kernels/numeric"
        spread = ["-n", str(JOBS), "--dist", "load"]
        inputs = ["mhlib", "benchmarks", "tests/kernels", "tests/conftest.py", "constraints.txt"]
        code = self._stage("kernel tests interpreted", inputs, [*PYTEST, numeric, *spread], interpret=True)
        inputs = ["mhlib/kernels", "tests/kernels", "tests/conftest.py", "constraints.txt"]
        return code or self._stage(
            "kernel tests compiled", inputs, [*PYTEST, "tests/kernels", f"--ignore={numeric}", *spread], without=(numeric,)
        )

    def chapters(self) -> int:
        return self._always("chapters", [sys.executable, str(TOOLS), "execute"])

    def notebooks(self) -> int:
        """Execute each notebook once more and compare the cells that are marked as reproducible."""
        new = [path for path in sorted(self.project.executed.rglob("*.ipynb")) if self._stamp(path).read() != digest(path)]
        if not new:
            return self._say("notebooks", "unchanged since they passed")
        code = self._always("notebooks", [*PYTEST, "--nbval-lax", "--nbval-current-env", f"--timeout={CELL_SECONDS}", *PARALLEL, *map(str, new)])
        if not code:
            for path in new:
                self._stamp(path).write(digest(path))
        return code

    def site(self) -> int:
        return self._always("site", [str(Path(sys.executable).with_name("jupyter-book")), "build", ".", "-W", "--keep-going", "--quiet"])

    def browser(self) -> int:
        if not browser.find() and self._always("fetching Chromium", [sys.executable, "-m", "playwright", "install", "chromium"]):
            print(browser.HOW, file=sys.stderr)
            return 1
        command = [*PYTEST, "tests/site", f"--ignore={VISITS}", "-n", str(JOBS), "--dist", "load"]
        return self._stage("site tests", ["_build/html", "tests/site"], command, without=(VISITS,))

    def visits(self) -> int:
        """Published notebooks as a visitor on Colab runs them: each installs a wheel and takes as long as its chapter."""
        inputs = ["_build/notebooks", "mhlib", "pyproject.toml", VISITS, "tests/colab.py"]
        return self._stage("Colab visits", inputs, [*PYTEST, VISITS, "-n", str(JOBS), "--dist", "load"])

    # ---- how a stage is run

    def _stage(
        self, name: str, inputs: list[str], command: list[str], without: tuple[str, ...] = (), interpret: bool = False
    ) -> int:
        now = self._digest(inputs, without)
        stamp = Stamp(self.project.build / "stamps" / name.replace(" ", "-"))
        if stamp.read() == now:
            return self._say(name, "unchanged since they passed")
        code = self._always(name, command, interpret=interpret)
        if not code:
            stamp.write(now)
        return code

    def _always(self, name: str, command: list[str], interpret: bool = False) -> int:
        print(f"── {name}", flush=True)
        start = time.perf_counter()
        # Triton reads it when a kernel is defined. Its own threads would only disturb each other: a tile is small.
        environment = os.environ | ({"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"} if interpret else {})
        code = subprocess.run(command, cwd=self.project.root, env=environment, check=False).returncode
        self._say(name, f"{'FAILED' if code else 'passed'} in {time.perf_counter() - start:.0f} s")
        return code

    def _say(self, name: str, what: str) -> int:
        print(f"── {name}: {what}", flush=True)
        return 0

    def _digest(self, inputs: list[str], without: tuple[str, ...]) -> str:
        root = self.project.root
        files = sorted(file for name in inputs for file in ([root / name] if (root / name).is_file() else (root / name).rglob("*")))
        kept = (f for f in files if f.is_file() and "__pycache__" not in f.parts and not any(f.is_relative_to(root / path) for path in without))
        return "\n".join(f"{file.relative_to(root)} {digest(file)}" for file in kept)

    def _stamp(self, notebook: Path) -> "Stamp":
        return Stamp(self.project.build / "stamps/notebooks" / notebook.relative_to(self.project.executed))


class Stamp:
    """What a stage's inputs looked like when it last passed."""

    def __init__(self, file: Path):
        self.file = file

    def read(self) -> str | None:
        return self.file.read_text(encoding="utf-8") if self.file.is_file() else None

    def write(self, text: str) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> int:
    settle()
    try:
        return Suite(Project.here()).run()
    except KeyboardInterrupt:
        return 130
