"""Reads one Python function: which of its calls need gradients, and on which line. No Lightning.

The names in the compiled function say cheaply whether there is anything to look for; only then is the source parsed,
so that comments, texts and other things of the same name do not count. Where there is no source (a class that was
made by ``exec``, a frozen program) the names have to do.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lightning_speedups.evaluation.walk import contents

# What only prepares for gradients; a function that also asks for them is told by that.
PREPARATIONS = frozenset(
    {"torch.enable_grad", "torch.set_grad_enabled", "torch.inference_mode(False)", ".requires_grad_()"}
    | {"requires_grad = True", "requires_grad=True", "enable_grad", "set_grad_enabled", "requires_grad_"}
)
_FUNCTIONAL = ("jacobian", "hessian", "vjp", "jvp", "hvp", "vhp")
_TRANSFORMS = ("grad", "grad_and_value", "vjp", "jvp", "jacrev", "jacfwd", "hessian", "linearize")
_DIFFERENTIATE = ("torch.autograd", "torch.func", "functorch")
# Methods that nothing but autograd (or Lightning on top of it) calls so.
_METHODS = frozenset({"backward", "manual_backward", "requires_grad_"})
_STORES = frozenset({"add", "append", "extend", "insert", "setdefault", "update"})
_SWITCHES = {"set_grad_enabled": True, "inference_mode": False, "requires_grad_": True}
_HINTS = _METHODS | {"enable_grad", "set_grad_enabled", "inference_mode", "requires_grad", "autograd"}
_HINTS |= {"func", "functorch", "forward_ad"}


@dataclass(frozen=True)
class Call:
    """A call in a function: what is called, the line (None without source), and whether it is a ``torch.func`` one."""

    what: str
    line: int | None
    transform: bool = False


@functools.cache
def _known() -> dict[int, tuple[str, bool]]:
    """What needs gradients, by the object's id: its public name, and whether it is a ``torch.func`` transform."""
    found: dict[int, tuple[str, bool]] = {
        id(torch.enable_grad): ("torch.enable_grad", False),
        id(torch.set_grad_enabled): ("torch.set_grad_enabled", False),
        id(torch.inference_mode): ("torch.inference_mode(False)", False),
        id(torch.autograd.grad): ("torch.autograd.grad", False),
        id(torch.autograd.backward): ("torch.autograd.backward", False),
        id(torch.autograd.forward_ad.dual_level): ("torch.autograd.forward_ad", False),
    }
    for name in _FUNCTIONAL:
        found[id(getattr(torch.autograd.functional, name))] = (f"torch.autograd.functional.{name}", False)
    for name in _TRANSFORMS:
        found[id(getattr(torch.func, name))] = (f"torch.func.{name}", True)
    return found


def calls_for_gradients(function: types.FunctionType) -> list[Call]:
    """The calls in ``function``, and in those that it defines inside, that need gradients."""
    names = names_in(function.__code__)
    known = {name for name in names if id(outer_value(function, name)) in _known()}
    if not known and not names & _HINTS and not any(_is_autograd(name, function) for name in names):
        return []
    node = parsed(function)
    if node is None:
        return _by_names(names, known)
    local = _imports_in(node)
    offset = function.__code__.co_firstlineno - 1
    found = [needed for part in _run_in_evaluation(node) if (needed := _needed(part, function, local)) is not None]
    return [Call(what, line + offset, transform) for what, line, transform in found]


def calls_of_train(function: types.FunctionType) -> list[int]:
    """The lines on which ``function`` puts a module into train mode: ``.train()`` or ``.train(True)``."""
    node = parsed(function) if "train" in names_in(function.__code__) else None
    if node is None:
        return []
    return [
        part.lineno + function.__code__.co_firstlineno - 1
        for part in ast.walk(node)
        if isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr == "train"
        and not part.keywords
        and (not part.args or (isinstance(part.args[0], ast.Constant) and part.args[0].value is True))
    ]


def compiles(function: types.FunctionType) -> bool:
    """Whether ``function`` calls ``torch.compile``."""
    node = parsed(function) if "compile" in names_in(function.__code__) else None
    return node is not None and any(
        isinstance(part, ast.Call) and _resolved(part.func, function, {}) is torch.compile for part in ast.walk(node)
    )


def _is_autograd(name: str, function: types.FunctionType) -> bool:
    """Whether a name is one of torch's modules that differentiate: imported by the function, or known to it."""
    value = outer_value(function, name)
    return (value.__name__ if isinstance(value, types.ModuleType) else name).startswith(_DIFFERENTIATE)


def turned_on_by(decorator: Any) -> str | None:
    """What turns gradients on, where a function is decorated with one of torch's own switches; None for nothing."""
    if isinstance(decorator, torch.enable_grad):
        return "torch.enable_grad"
    if isinstance(decorator, torch.set_grad_enabled) and decorator.mode:
        return "torch.set_grad_enabled"
    if isinstance(decorator, torch.inference_mode) and not decorator.mode:
        return "torch.inference_mode(False)"
    return None


def names_in(code: types.CodeType) -> set[str]:
    """Every global, attribute and keyword that a compiled function and its inner functions name."""
    names = {*code.co_names, *code.co_freevars}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_in(constant)
        elif isinstance(constant, tuple):
            names.update(part for part in constant if isinstance(part, str))
    return names


def outer_value(function: types.FunctionType, name: str) -> Any:
    """What ``name`` means in a function from outside of it: in its closure, or in its module."""
    if function.__closure__ and name in function.__code__.co_freevars:
        return contents(function.__closure__[function.__code__.co_freevars.index(name)])
    return function.__globals__.get(name)


def imported_as(function: types.FunctionType, name: str) -> list[types.ModuleType]:
    """The loaded modules that ``name`` may mean where a function imports it itself, relative imports included."""
    package = function.__globals__.get("__package__") or ""
    parents = [package.rsplit(".", up)[0] for up in range(package.count(".") + 1)] if package else []
    found = (sys.modules.get(each) for each in (name, *(f"{parent}.{name}" for parent in parents)))
    return [module for module in found if isinstance(module, types.ModuleType)]


def parsed(function: types.FunctionType) -> ast.AST | None:
    """The function's syntax tree, its lines counted from its own first; None where there is no source."""
    lines = _lines_of(function)
    if lines is None:
        return None
    block = "".join(lines)
    # An indented block is wrapped rather than dedented, which would break texts that span lines.
    indented = block[:1].isspace()
    try:
        tree = ast.parse(f"if 1:\n{block}" if indented else block)
    except SyntaxError:  # A lambda in the middle of an expression, say.
        return None
    if indented:
        ast.increment_lineno(tree, -1)
    return tree


def place_of(function: types.FunctionType, line: int | None) -> str:
    """``model.py:12``; without a line, that of the function. A notebook's cells have no names worth telling."""
    code = function.__code__
    in_a_notebook = "ipykernel" in code.co_filename or code.co_filename.startswith("<ipython-input")
    file = "notebook cell" if in_a_notebook else Path(code.co_filename).name
    return f"{file}:{code.co_firstlineno if line is None else line}"


def _lines_of(function: types.FunctionType) -> list[str] | None:
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)[code.co_firstlineno - 1 :]
    if not lines:
        return None
    try:
        return inspect.getblock(lines)
    except (SyntaxError, IndentationError):
        return None


def _by_names(names: set[str], known: set[str]) -> list[Call]:
    sure = known | (names & (_METHODS | {"enable_grad", "set_grad_enabled"}))
    if "autograd" in names or any(name.startswith("torch.autograd") for name in names):
        sure |= names & {"grad", *_FUNCTIONAL}
    transforms = {"func", "functorch", "torch.func"} & names
    transform = bool(transforms and names & set(_TRANSFORMS))
    if transform:
        sure |= names & set(_TRANSFORMS)
    return [Call(name, None, transform) for name in sorted(sure)]


def _imports_in(node: ast.AST) -> dict[str, Any]:
    """What the function imports itself, as far as it is loaded already."""
    found: dict[str, Any] = {}
    for part in ast.walk(node):
        if isinstance(part, ast.ImportFrom) and part.module and part.module.partition(".")[0] in ("torch", "functorch"):
            module = sys.modules.get(part.module)
            found |= {alias.asname or alias.name: getattr(module, alias.name, None) for alias in part.names}
        elif isinstance(part, ast.Import):
            found |= {alias.asname: sys.modules.get(alias.name) for alias in part.names if alias.asname}
    return found


def _needed(part: ast.AST, function: types.FunctionType, local: dict[str, Any]) -> tuple[str, int, bool] | None:
    if isinstance(part, ast.Assign | ast.AnnAssign):
        targets = part.targets if isinstance(part, ast.Assign) else [part.target]
        sets = any(isinstance(target, ast.Attribute) and target.attr == "requires_grad" for target in targets)
        return ("requires_grad = True", part.lineno, False) if sets and not _is_false(part.value) else None
    if isinstance(part, ast.Call):
        return _needed_by_call(part, function, local)
    return None


def _needed_by_call(
    call: ast.Call, function: types.FunctionType, local: dict[str, Any]
) -> tuple[str, int, bool] | None:
    for keyword in call.keywords:
        if keyword.arg == "requires_grad" and not _is_false(keyword.value):
            return "requires_grad=True", call.lineno, False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    argument = call.args[0] if call.args else next((keyword.value for keyword in call.keywords), None)
    if name in _SWITCHES and not _switched_on(name, argument):
        return None
    known = _known().get(id(_resolved(call.func, function, local)))
    if known is not None:
        return known[0], call.lineno, known[1]
    if name in _METHODS and isinstance(call.func, ast.Attribute):
        return f".{name}()", call.lineno, False
    if name in _TRANSFORMS and ast.unparse(call.func).startswith(("torch.func.", "functorch.")):
        return ast.unparse(call.func), call.lineno, True
    return None


def _switched_on(name: str, argument: ast.expr | None) -> bool:
    """Whether a switch is thrown towards gradients, or may be: its argument is not the constant that turns them off."""
    towards = _SWITCHES[name]
    if argument is None:
        return towards
    known = _truth(argument)
    return name != "inference_mode" if known is None else known is towards


def _is_false(value: ast.expr | None) -> bool:
    return value is None or _truth(value) is False


def _truth(expression: ast.expr) -> bool | None:
    """Whether an expression holds in evaluation, where ``self.training`` does not; None where only a run can tell."""
    if isinstance(expression, ast.Constant):
        return bool(expression.value)
    if isinstance(expression, ast.Attribute) and expression.attr == "training":
        return False if isinstance(expression.value, ast.Name) and expression.value.id == "self" else None
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.Not):
        inner = _truth(expression.operand)
        return None if inner is None else not inner
    if isinstance(expression, ast.BoolOp) and isinstance(expression.op, ast.And):
        return False if any(_truth(part) is False for part in expression.values) else None
    return None


def _run_in_evaluation(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a syntax tree, without the branches that only training takes."""
    yield node
    for name, value in ast.iter_fields(node):
        decides = isinstance(node, ast.If | ast.IfExp) and name in ("body", "orelse")
        if decides and _truth(node.test) is (name == "orelse"):  # type: ignore[attr-defined]
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield from _run_in_evaluation(part)


def _resolved(expression: ast.expr, function: types.FunctionType, local: dict[str, Any]) -> Any:
    """What a name, or an attribute of a module, is; None for what only a run can tell."""
    if isinstance(expression, ast.Name):
        return local[expression.id] if expression.id in local else outer_value(function, expression.id)
    if isinstance(expression, ast.Attribute):
        base = _resolved(expression.value, function, local)
        return getattr(base, expression.attr, None) if isinstance(base, types.ModuleType) else None
    return None


def assignments_of(function: types.FunctionType, attribute: str) -> Iterator[int]:
    """The lines on which ``function`` sets ``self.attribute`` or something in it, or registers it as a buffer."""
    if attribute not in names_in(function.__code__) | set(_texts_in(function.__code__)):
        return
    node = parsed(function)
    offset = function.__code__.co_firstlineno - 1
    for part in ast.walk(node) if node is not None else ():
        if isinstance(part, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            if any(_mentions(target, attribute) for target in targets):
                yield part.lineno + offset
        elif isinstance(part, ast.Call):
            texts = [arg.value for arg in part.args if isinstance(arg, ast.Constant)]
            method = part.func if isinstance(part.func, ast.Attribute) else None
            stores = method is not None and method.attr in _STORES and _mentions(method.value, attribute)
            if attribute in texts or stores:
                yield part.lineno + offset


def _mentions(target: ast.expr, attribute: str) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr == attribute for part in ast.walk(target))


def _texts_in(code: types.CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, types.CodeType):
            yield from _texts_in(constant)
