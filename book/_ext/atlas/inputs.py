"""What a chapter's results depend on besides its own code: the parts of mhlib it imported, and the locked versions."""

import hashlib
from pathlib import Path

# The kernel answers this after the chapter's last cell. `print` and `sorted` may be shadowed there; builtins may not.
QUESTION = (
    "__import__('builtins').print(*[m.__file__ for n, m in list(__import__('sys').modules.items())"
    " if n.partition('.')[0] == 'mhlib' and getattr(m, '__file__', None)], sep='\\n')"
)


def modules(root: Path, answer: str) -> list[str]:
    """The files named in the kernel's answer: relative to the root where they lie below it, sorted."""
    files = (Path(line.strip()) for line in answer.splitlines() if line.strip().endswith(".py"))
    return sorted({_name(root, file) for file in files if file.is_file()})


def snapshot(root: Path, modules: list[str]) -> dict[str, str]:
    """Content hashes of these modules, of the data files beside them, and of the lock; a missing file hashes to ""."""
    files = {root / "constraints.txt", *(root / module for module in modules)}
    for module in modules:
        files.update(_data_beside(root / module))
    if "mhlib/book/recorded.py" in modules:  # shows results that lie outside of the package in a checkout
        files.update((root / "benchmarks/results").glob("*.json"))
    return {_name(root, file): digest(file) for file in sorted(files)}


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:20] if file.is_file() else ""


def _data_beside(module: Path) -> list[Path]:
    if module.name != "__init__.py" or not module.is_file():
        return []
    return [f for f in module.parent.iterdir() if f.is_file() and f.suffix != ".py" and not f.name.startswith(".")]


def _name(root: Path, file: Path) -> str:
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else file.as_posix()
