"""Builds the library of a scope: sources to C (``translate``), C to objects, objects to one file.

Owns the order of work and the error messages of its steps. The sources are copied first and the
library's name is derived from the copy, so changes during the build have no effect.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import msgspec

from quire.compilation.library import (
    CompiledLibrary,
    LibraryRecord,
    find_library,
    library_name,
    library_prefix,
    open_cache,
    record_name,
    record_prefix,
)
from quire.compilation.sources import OPTIMISATION, Scope
from quire.compilation.toolchain import compile_all, link, problem_of_compiler
from quire.compilation.translate import Translation, TranslationOrder
from quire.core.errors import ConfigError

Progress = Callable[[str, float], None]
"""Called with a stage and its progress, 0 to 1; from any thread."""

KEPT_LIBRARIES = 4
"""Enough for the sources, interpreters and branches that a developer switches between."""

_EXTRA = "pip install 'quire[compile]'"
_CHECK = """
import importlib, json, sys
from pathlib import Path
from quire.compilation.sources import Scope
from quire.compilation.finder import in_use, use_compiled
package, folder, compiled, directory, covered, beside = sys.argv[1:]
scope = Scope(package, Path(folder), compiled, *map(tuple, map(json.loads, (covered, beside))))
sys.path.insert(0, str(scope.folder.parent))
finder = use_compiled(Path(directory), scope)
for module in scope.modules():
    importlib.import_module(module)
sys.exit(None if in_use(scope) else f"not used: {finder.refusal}")
"""


def problem_of_machine() -> str | None:
    """The tools that are missing on this machine to build anything, with the remedy; None if none
    is."""
    if find_spec("mypyc") is None or find_spec("setuptools") is None:
        return f"mypyc is not installed: {_EXTRA}"
    return problem_of_compiler()


def build(scope: Scope, directory: Path, progress: Progress | None = None) -> CompiledLibrary:
    """Build the library for the present sources, or find it in ``directory``. Blocks while another
    process builds there.

    Raises:
        ConfigError: a tool is missing, a step has failed, or the directory cannot be used.
    """
    cache = open_cache(directory)
    with cache.building(scope.compiled):
        found = find_library(scope, directory)
        if isinstance(found, CompiledLibrary):
            return found
        if (problem := problem_of_machine()) is not None:
            raise ConfigError(problem)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".building-") as work:
            copy = _copied(scope, Path(work) / "sources")
            key = copy.key()
            _build_in(copy, Path(work), progress or _silent)
            for name in (library_name(scope, key), record_name(scope, key)):
                (Path(work) / "built" / name).replace(directory / name)
        for prefix in (library_prefix(scope), record_prefix(scope)):
            cache.keep_newest(prefix, KEPT_LIBRARIES)
    found = find_library(scope, directory)
    if isinstance(found, str):
        raise ConfigError(f"the sources were changed while they were compiled ({found}): try again")
    return found


def _silent(stage: str, fraction: float) -> None:
    pass


def _copied(scope: Scope, target: Path) -> Scope:
    """A copy of the present sources, in a folder that holds nothing else."""
    folder = target / scope.package
    for path in [*scope.files(), Path("__init__.py")]:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(scope.folder / path, folder / path)
    (folder / "py.typed").touch()
    return replace(scope, folder=folder)


def _build_in(scope: Scope, work: Path, progress: Progress) -> None:
    """Build ``scope``, whose sources are a copy; the finished files are written to
    ``work/built``."""
    began_s = time.monotonic()
    modules = scope.modules()
    progress(f"translating {len(modules)} modules", 0.0)
    translation = _translate(scope, work)
    progress(f"translating {len(modules)} modules", 1.0)
    objects = compile_all(
        [Path(one) for one in translation.sources],
        work / "objects",
        [Path(one) for one in translation.include_folders],
        translation.arguments,
        lambda done: progress("compiling", done),
    )
    built = work / "built"
    built.mkdir(mode=0o700)
    key = scope.key()
    path = built / library_name(scope, key)
    link(objects, path)
    path.chmod(0o600)
    record = LibraryRecord(
        group=translation.group,
        mypy=translation.mypy,
        num_modules=len(modules),
        size_bytes=path.stat().st_size,
        build_s=round(time.monotonic() - began_s, 1),
    )
    (built / record_name(scope, key)).write_bytes(msgspec.json.encode(record))
    (built / record_name(scope, key)).chmod(0o600)
    progress("loading it once", 0.0)
    _check_loads(scope, built)
    progress("loading it once", 1.0)


def _translate(scope: Scope, work: Path) -> Translation:
    answer = work / "translation.json"
    order = TranslationOrder(
        files=[str(Path(scope.package) / path) for path in scope.modules().values()],
        target=str(work / "c"),
        answer=str(answer),
        optimisation=OPTIMISATION,
    )
    done = subprocess.run(
        [sys.executable, "-P", "-m", "quire.compilation.translate"],
        cwd=scope.folder.parent,
        input=msgspec.json.encode(order),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode != 0 or not answer.exists():
        said = done.stdout.decode(errors="replace").strip()
        raise ConfigError(f"mypyc cannot translate {scope.prefix.rstrip('.')}: {said[-2000:]}")
    return msgspec.json.decode(answer.read_bytes(), type=Translation)


def _check_loads(scope: Scope, built: Path) -> None:
    """Load the library once, because one that cannot be loaded would be refused at every start."""
    arguments = [scope.package, str(scope.folder), scope.compiled, str(built)]
    arguments += [json.dumps(scope.covered), json.dumps(scope.beside)]
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CHECK, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise ConfigError(
            f"the compiled library cannot be loaded: {said[-1] if said else done.returncode}"
        )
