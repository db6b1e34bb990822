"""Finds where the package touches private names that are not its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "lightning_speedups"
# Documented in spite of the underscore.
PUBLIC_ANYWAY = {"_exit", "_asdict", "_replace", "_fields"}

# Of the stock class that a callback derives from, so its own; each has a canary.
INHERITED = {"_generate_state_key"}


def _is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__") and name not in PUBLIC_ANYWAY


def _defined(tree: ast.AST) -> Iterator[str]:
    """Names that a module makes: functions, classes, variables, attributes that it assigns, and its own module name."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).rpartition(".")[2]


def _used(tree: ast.AST) -> Iterator[str]:
    """Private names that a module reads off objects, by dot or by ``getattr`` and its like."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and _is_private(name.value):
                yield str(name.value)


def foreign_private_names() -> dict[str, set[str]]:
    """The private names that each module touches and that no module of the package defines, by the module's path."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    own = {name for tree in trees.values() for name in _defined(tree)} | {path.stem for path in trees}
    found = {path.relative_to(PACKAGE).as_posix(): set(_used(tree)) - own for path, tree in trees.items()}
    return {module: names for module, names in found.items() if names}
