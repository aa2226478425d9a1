"""What the registry says about independent implementations is what the tests compare with, no more and no less."""

import ast
from pathlib import Path

import mhlib.functional
from mhlib.registry import mechanisms

TESTS = Path(__file__).parents[1]


def marked():
    """(mechanism, package) of every `pytest.mark.peer` in the tests."""
    for file in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.peer":
                yield tuple(ast.literal_eval(argument) for argument in node.args)


def test_declared_peers_are_the_tested_ones():
    tested = set(marked())
    known = mechanisms()
    # A function that is not a mechanism of a paper (a normalizer) may have a peer too; nothing declares it.
    unknown = {name for name, _ in tested if name not in known and name not in mhlib.functional.__all__}
    assert not unknown, f"peer markers name {unknown}, which is neither registered nor a function of mhlib.functional"
    declared = {(name, package) for name, mechanism in known.items() for package in mechanism.peers}
    tested = {(name, package) for name, package in tested if name in known}
    assert declared == tested, f"declared but not tested: {declared - tested}; tested but not declared: {tested - declared}"
