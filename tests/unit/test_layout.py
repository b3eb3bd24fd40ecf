"""The layout of docs/architecture.md: which package may import what, and what every module must have."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("operator", "supervisor", "trainer_image", "rollout_image")
STDLIB = frozenset(sys.stdlib_module_names)

# package → our other packages that it may import
ARROWS = {
    "halo_api": set(),
    "halo_operator": {"halo_api"},
    "halo_cli": {"halo_api"},
    "halo_supervisor": {"halo_api"},
    "halo_trainer": {"halo_api"},
    "halo_rollout": {"halo_api"},
}

# third-party module → the only file, or package, that may import it
ONLY_IN = {
    "kopf": "operator/halo_operator/watches.py",
    "kubernetes": "operator/halo_operator/cluster.py",
    "trl": "trainer_image/halo_trainer/trl/",
    "datasets": "trainer_image/halo_trainer/trl/",
    "wandb": "trainer_image/halo_trainer/wandb_run.py",
    "vllm": "rollout_image/halo_rollout/extension.py",
}

# prefix of paths → the third-party modules that may be imported there
THIRD_PARTY = {
    "operator/halo_api/": {"pydantic", "yaml"},
    # cryptography: `receipt verify` alone imports it, and only when it is run; so does `plot` with what draws.
    "operator/halo_cli/": {"pydantic", "yaml", "cryptography", "plotille", "matplotlib"},
    "operator/halo_operator/plan/": {"pydantic"},
    # pydantic comes with halo_api: run files and reports are its models.
    "supervisor/halo_supervisor/": {"pydantic"},
    "trainer_image/halo_trainer/objectives/": {"torch"},
}

# What does I/O in the standard library, as far as one could be tempted: halo_api and plan/ do none.
IO_MODULES = {
    "asyncio",
    "http",
    "io",
    "logging",
    "os",
    "shutil",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "urllib",
}
PURE = ("operator/halo_api/", "operator/halo_operator/plan/")


def trees() -> dict[str, ast.Module]:
    """Return each module of ours, parsed, under its path below the repository."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield every module that is imported, wherever in the file; a relative import yields nothing but dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def top(names: Iterator[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


TREES = trees()
FOREIGN = {where: top(imports(tree)) - STDLIB - ARROWS.keys() for where, tree in TREES.items()}


def test_nothing_shadows_the_standard_librarys_operator() -> None:
    import operator

    assert not (ROOT / "operator" / "__init__.py").exists()
    assert operator.add(1, 2) == 3
    assert not str(operator.__file__).startswith(str(ROOT))


def test_every_module_says_what_it_is_for() -> None:
    assert [where for where, tree in TREES.items() if not ast.get_docstring(tree)] == []


def test_every_package_has_its_arrows() -> None:
    assert {where.split("/")[1] for where in TREES} <= ARROWS.keys()


def test_arrows_point_one_way() -> None:
    wrong = {}
    for where, tree in TREES.items():
        package = where.split("/")[1]
        if others := top(imports(tree)) & ARROWS.keys() - ARROWS[package] - {package}:
            wrong[where] = others
    assert wrong == {}


def test_kopf_the_client_trl_wandb_and_vllm_are_each_imported_in_one_place() -> None:
    for module, place in ONLY_IN.items():
        found = {where for where, foreign in FOREIGN.items() if module in foreign}
        assert found
        assert {where for where in found if not where.startswith(place)} == set()


def test_third_parties_stay_where_they_belong() -> None:
    wrong = {
        where: foreign - allowed
        for prefix, allowed in THIRD_PARTY.items()
        for where, foreign in FOREIGN.items()
        if where.startswith(prefix) and foreign - allowed
    }
    assert wrong == {}


def test_words_and_plans_do_no_io() -> None:
    pure = {where: set(imports(tree)) for where, tree in TREES.items() if where.startswith(PURE)}
    assert {where: names for where, found in pure.items() if (names := top(iter(found)) & IO_MODULES)} == {}
    effects = {
        where: name
        for where, found in pure.items()
        for name in found
        if name.startswith("halo_operator.") and not name.startswith("halo_operator.plan")
    }
    assert effects == {}


def test_the_trainers_command_line_starts_without_torch() -> None:
    """An inspection needs none: a bad row is found before torch would be imported."""
    tree = TREES["trainer_image/halo_trainer/cli.py"]
    at_once = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert not at_once & {"torch", "halo_trainer.train", "halo_trainer.sample", "halo_trainer.model"}
