"""Public names found without importing: a package offers what its files list in `__all__`, and imports a file on first use.

So `import mhlib` stays fast, a chapter depends only on the files it uses, and a new mechanism is one new file.
"""

import ast
import difflib
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

_ALL = re.compile(r"^__all__\s*=\s*([\[(].*?[\])])", re.MULTILINE | re.DOTALL)


def scan(package_name: str, package_file: str) -> dict[str, str]:
    """Map each public name below a package to the full name of the module that defines it.

    Args:
        package_name: dotted name, such as `"mhlib.heads"`.
        package_file: the package's `__init__.py`.

    Raises:
        ImportError: a name is public in two files, or an `__all__` is not a literal list of strings.
    """
    root = Path(package_file).parent
    names, files = {}, {}
    for file in sorted(root.rglob("*.py")):
        if file == Path(package_file):
            continue
        module = ".".join([package_name, *file.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
        for name in _public(file):
            if name in names:
                raise ImportError(f"{name!r} is public in two files, {files[name]} and {file}: rename it in one of them")
            names[name], files[name] = module, file
    return names


def _public(file: Path) -> list[str]:
    found = _ALL.search(file.read_text(encoding="utf-8"))
    if not found:
        return []
    try:
        names = ast.literal_eval(found[1])
    except (ValueError, SyntaxError):
        names = None
    if names is None or not all(isinstance(name, str) for name in names):
        raise ImportError(f"{file}: __all__ must be a literal list of strings, because it is read without importing; it is {found[1]}")
    return list(names)


class _LazyPackage(ModuleType):
    def __setattr__(self, name, value):
        # Importing pkg/softmax.py would otherwise bind pkg.softmax to the module, and hide the public function of that name.
        if isinstance(value, ModuleType) and name in self.__dict__.get("__all__", ()):
            return
        super().__setattr__(name, value)


def attach(package_name: str, package_file: str):
    """Make a package lazy. Its `__init__.py` needs only a docstring and these two lines:

        from mhlib._lazy import attach
        __getattr__, __dir__, __all__ = attach(__name__, __file__)
    """
    names = scan(package_name, package_file)
    package = sys.modules[package_name]
    package.__class__ = _LazyPackage

    def getattr_(name: str):
        if name in names:
            value = getattr(importlib.import_module(names[name]), name)
        elif not name.startswith("_") and name in submodules(package_file):
            value = importlib.import_module(f"{package_name}.{name}")
        else:
            raise unknown(package_name, name, [*names, *submodules(package_file)])
        setattr(package, name, value)  # the next access does not come here
        return value

    def dir_():
        return sorted({*vars(package), *names, *submodules(package_file)})

    return getattr_, dir_, sorted(names)


def submodules(package_file: str) -> list[str]:
    """Public modules and packages directly below a package."""
    entries = Path(package_file).parent.iterdir()
    found = {e.stem for e in entries if e.suffix == ".py" or (e / "__init__.py").is_file()}
    return sorted(name for name in found if not name.startswith("_"))


def unknown(package_name: str, name: str, known: list[str]) -> AttributeError:
    """The error for a name that does not exist, with the nearest ones that do."""
    by_lower = {k.lower(): k for k in known}
    near = [by_lower[m] for m in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)]
    hint = f"; did you mean {', '.join(near)}?" if near and not name.startswith("__") else ""
    return AttributeError(f"module {package_name!r} has no attribute {name!r}{hint}", name=name)
