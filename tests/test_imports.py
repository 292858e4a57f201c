"""The flow of the rooms (architecture.md), and what importing the package loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
PACKAGE = PROJECT / "fedvar_fast"

#: Rooms in the order of the flow: a module imports from its own layer and from those above it in this list.
LAYERS = (
    ("exceptions", "_typing", "_atomic", "_memory", "timeaxis"),
    ("kernels",),
    ("_tables", "panel", "scaling", "readers", "moments", "lowrank"),
    ("privacy", "solvers"),
    ("federation",),
    ("forecast", "modelfile", "metrics", "rank", "tuning"),
    ("estimators",),
    ("evaluation", "_evaluation_result", "simulate"),
    ("cli", "plot"),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
#: Loaded where they are used, and only then. (cli.py may import click.)
HEAVY = {"matplotlib", "click", "tqdm", "polars", "pyarrow", "nvflare", "dp_accounting", "cvxpy", "numba"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(module: str) -> str | None:
    """``fedvar_fast.kernels._door`` belongs to ``kernels``; the package itself to no room."""
    parts = module.split(".")
    if len(parts) == 1:
        return None
    return "cli" if parts[1].startswith("_cli") else parts[1]


def module_name(path: Path) -> str:
    parts = path.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str) -> bool:
    at = PROJECT / name.replace(".", "/")
    return at.is_dir() or at.with_suffix(".py").exists() or any(at.parent.glob(f"{at.name}.*.so"))


def imported(tree: ast.Module, path: Path) -> set[str]:
    """Full names of all modules that are imported anywhere in a file."""
    names: set[str] = set()
    package = module_name(path).split(".")
    package = package if path.name == "__init__.py" else package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package[: len(package) - node.level + 1]
                base = ".".join([*up, *([base] if base else [])])
            if base.split(".")[0] == "fedvar_fast":
                # ``from fedvar_fast import kernels`` imports a module, ``... import FedVAR`` does not.
                found = {f"{base}.{alias.name}" for alias in node.names}
                names |= {name if is_module(name) else base for name in found}
            else:
                names.add(base)
    return names


def outermost(tree: ast.Module) -> set[str]:
    """First parts of the modules that are imported when the file is, not inside a function."""
    names: set[str] = set()
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").split(".")[0])
        waiting.extend(ast.iter_child_nodes(node))
    return names


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def test_every_module_has_a_room():
    rooms = {room_of(module_name(path)) for path in MODULES} - {None}
    assert rooms <= set(LEVEL), f"rooms that no layer names: {sorted(rooms - set(LEVEL))}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: module_name(path))
def test_imports_follow_the_flow(path):
    room = room_of(module_name(path))
    if room is None:
        return  # the package itself collects the public names
    against = []
    for name in imported(parsed(path), path):
        if name.split(".")[0] != "fedvar_fast":
            continue
        other = room_of(name)
        if other is None:
            if room in LAYERS[-1]:
                continue  # the command line and the plots use the public names, as a user does
            against.append(f"{name} (import from the module that defines the name)")
        elif LEVEL[other] > LEVEL[room]:
            against.append(name)
    assert not against, f"{module_name(path)} imports against the flow: {against}"


def test_no_circle_among_modules():
    # Within one layer modules may use each other, but not in a circle.
    graph = {module_name(path): imported(parsed(path), path) & set(map(module_name, MODULES)) for path in MODULES}
    graph = {name: needed - {name, "fedvar_fast"} for name, needed in graph.items() if name != "fedvar_fast"}
    done: set[str] = set()
    while ready := {name for name, needed in graph.items() if name not in done and needed <= done}:
        done |= ready
    assert not set(graph) - done, f"modules that import each other in a circle: {sorted(set(graph) - done)}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: module_name(path))
def test_heavy_libraries_are_imported_where_used(path):
    if path.name == "_jit.py":
        return  # Numba's own module, itself imported inside functions: see the subprocess below
    allowed = {"click"} if room_of(module_name(path)) == "cli" else set()
    assert not (outermost(parsed(path)) & HEAVY) - allowed


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sorted(m for m in sys.modules if '.' not in m))"
    run = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_the_package_loads_nothing_heavy():
    # What our dependencies load themselves (pandas takes pyarrow where it is installed) is not our doing.
    theirs = loaded_after("import pandas, narwhals, sklearn.base, scipy.linalg, scipy.special, threadpoolctl")
    ours = loaded_after("import fedvar_fast")
    assert "fedvar_fast" in ours
    assert not (ours - theirs) & (HEAVY | {"IPython", "statsmodels", "joblib", "torch"})
    assert "numba" not in ours and "matplotlib" not in ours and "polars" not in ours and "click" not in ours


@pytest.mark.parametrize(
    "path", [*MODULES, *sorted((PROJECT / "kernels").glob("*.p[yx][xd]"))], ids=lambda path: path.name
)
def test_files_are_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500


@pytest.mark.parametrize("path", MODULES, ids=lambda path: module_name(path))
def test_the_library_does_not_print(path):
    if room_of(module_name(path)) == "cli":
        return
    calls = [
        node.lineno
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not calls, f"{path.name} prints in line(s) {calls}"


def test_compiled_sources_do_not_print():
    for path in (PROJECT / "kernels").glob("*.pyx"):
        assert "print(" not in path.read_text(encoding="utf-8"), path.name
