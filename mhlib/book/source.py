"""Show the tested source of a function, or of a class as its difference from its parent."""

import ast
import inspect
import textwrap
from dataclasses import dataclass
from pathlib import Path

__all__ = ["source", "Source"]


@dataclass(frozen=True)
class Source:
    """Python source that a notebook shows with highlighting."""

    code: str

    def _repr_mimebundle_(self, include=None, exclude=None):
        fence = "```"
        while fence in self.code:
            fence += "`"
        return {"text/markdown": f"{fence}python\n{self.code}\n{fence}", "text/plain": self.code}

    def __str__(self) -> str:
        return self.code


def source(what, *names: str) -> Source:
    """The source that the tests run, without docstrings and without the decorators of the class or function itself.

    Of a class: its `class` line and what its body overrides of its parents, or what `names` select, in the file's order.
    Of a function or a method: its source.

    Raises:
        ValueError: `names` are given for something that is not a class, or the class body does not define one of them.
    """
    what = inspect.unwrap(what)
    lines = textwrap.dedent(inspect.getsource(what)).splitlines()
    node = ast.parse("\n".join(lines)).body[0]
    if isinstance(node, ast.ClassDef):
        members = [_code(lines, member) for member in _chosen(node, what, names)]
        body = "\n\n".join(members) or "    pass"
        code = f"{_class_line(lines, node)}\n{body}"
    elif names:
        raise ValueError(f"names select members of a class, and {what.__qualname__} is not a class")
    else:
        code = _code(lines, node, decorators=False)
    return Source(f"# {_place(what)}\n{code}")


def _chosen(node: ast.ClassDef, cls: type, names: tuple[str, ...]) -> list[ast.stmt]:
    members = {name: member for member in node.body for name in _defines(member)}
    if missing := [name for name in names if name not in members]:
        raise ValueError(f"the body of {cls.__name__} does not define {', '.join(missing)}; it defines {', '.join(members)}")
    wanted = names or [name for name in members if any(hasattr(base, name) for base in cls.__bases__)]
    return [member for member in node.body if any(name in wanted for name in _defines(member))]


def _defines(member: ast.stmt) -> list[str]:
    if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [member.name]
    targets = member.targets if isinstance(member, ast.Assign) else [getattr(member, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _class_line(lines: list[str], node: ast.ClassDef) -> str:
    """Usually one line, more where the bases do not fit into one."""
    header = lines[node.lineno - 1 : max(node.lineno, _first_line(node.body[0]) - 1)]
    while len(header) > 1 and not header[-1].split("#")[0].strip():
        header.pop()
    return "\n".join(header)


def _code(lines: list[str], node: ast.stmt, decorators: bool = True) -> str:
    first = _first_line(node) if decorators else node.lineno
    kept = {number: lines[number - 1] for number in range(first, node.end_lineno + 1)}
    body = getattr(node, "body", [])
    # A docstring that is the whole body stays: without it there would be no function.
    if len(body) > 1 and ast.get_docstring(node, clean=False) is not None and body[0].lineno > node.lineno:
        for number in range(body[0].lineno, _first_line(body[1])):
            if number <= body[0].end_lineno or not kept[number].strip():
                del kept[number]
    return "\n".join(kept.values())


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])


def _place(what) -> str:
    """The file as a reader finds it in the repository, wherever the library is installed."""
    parts = Path(inspect.getsourcefile(what)).parts
    return "/".join(parts[len(parts) - 1 - parts[::-1].index("mhlib") :] if "mhlib" in parts else parts[-1:])
