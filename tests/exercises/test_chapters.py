"""In every chapter the starter cells are neutral, and every solution with a checker passes it."""

import ast
import re
from pathlib import Path

import pytest

from mhlib import exercises

BOOK = Path(__file__).parents[2] / "book"
_CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(rf"{_CELL.pattern}|^:::\{{(solution-start|solution-end)\}}", re.MULTILINE | re.DOTALL)


def cells(chapter: Path) -> list[tuple[str, bool]]:
    """The code of each cell, and whether it stands in a solution."""
    found, solved = [], False
    for match in _BLOCK.finditer(chapter.read_text(encoding="utf-8")):
        if match[2]:
            solved = match[2] == "solution-start"
        else:
            code = re.sub(r"\A(:[\w-]+:[^\n]*\n|---\n.*?---\n)+", "", match[1], flags=re.DOTALL)
            found.append((code, solved))
    return found


CHAPTERS = {chapter: found for chapter in sorted(BOOK.rglob("*.md")) if (found := cells(chapter))}
CHECKS = [
    pytest.param(chapter, code, solved, id=f"{chapter.stem}-{'solution' if solved else 'starter'}-{i}")
    for chapter, found in CHAPTERS.items()
    for i, (code, solved) in enumerate(found)
    if "exercises.check(" in code
]


def imports(chapter: Path) -> dict:
    """What the chapter's import statements bind."""
    names: dict = {}
    for code, _ in CHAPTERS[chapter]:
        try:
            body = ast.parse(code).body
        except SyntaxError:  # a cell with a magic
            continue
        for statement in body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                exec(compile(ast.Module([statement], []), str(chapter), "exec"), names)
    return names


def last_value(code: str, names: dict):
    body = ast.parse(code).body
    assert isinstance(body[-1], ast.Expr), "the check must be the last value of its cell, or nobody sees it"
    exec(compile(ast.Module(body[:-1], []), "cell", "exec"), names)
    return eval(compile(ast.Expression(body[-1].value), "cell", "eval"), names)


@pytest.mark.parametrize("chapter, code, solved", CHECKS)
def test_starters_are_neutral_and_solutions_pass(chapter, code, solved):
    result = last_value(code, imports(chapter))
    assert result.state == ("passed" if solved else "open"), str(result)


def test_every_starter_has_a_solution_and_every_name_exists():
    assert CHECKS, "no chapter has an exercise with a checker"
    for chapter, found in CHAPTERS.items():
        starters, solutions = (
            {name for code, solved in found if solved == wanted for name in re.findall(r'exercises\.check\("(\w+)"', code)}
            for wanted in (False, True)
        )
        assert starters == solutions, f"{chapter.name}: without a starter or a solution: {starters ^ solutions}"
        assert starters <= set(exercises.names())
