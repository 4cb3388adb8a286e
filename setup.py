"""Builds the CPU kernel: every source once for each instruction set, each set a library of its own.

The rest of the project's metadata is in pyproject.toml. The kernel is plain C++17 behind a C
interface (no torch, no Python headers), so a compiler is all that this needs. It is optional: where
no compiler works, the install succeeds, the record beside the libraries says why, and the engine
falls back to PyTorch. Code of a higher instruction set can never reach a lower one, because no
object file is shared between two libraries.

``CXX`` chooses the compiler. ``python setup.py build_ext --inplace`` rebuilds what changed.
"""

import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
PACKAGE = "quire/engine/cpu"
SOURCES = ROOT / "src" / PACKAGE / "csrc"
OBJECTS = ROOT / "build" / f"kernel-{sysconfig.get_platform()}"
"""Kept from build to build: setuptools makes an editable install in a temporary directory."""
RECORD = "_kernel_build.json"

AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vnni"))]
AVX512_BF16 = [*AVX512, "-mavx512bf16"]
AMX = [*AVX512_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"]
X86_FLAGS = {"avx2": AVX2, "avx512": AVX512, "avx512_bf16": AVX512_BF16, "amx": AMX}

COMMON_FLAGS = [
    *("-std=c++17", "-O3", "-g0", "-fPIC", "-pthread", "-fvisibility=hidden"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
    *("-Wall", "-Wextra", "-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Wno-psabi"),
]
LINK_FLAGS = ["-shared", "-pthread"]

PRELUDE = ("algorithm", "condition_variable", "memory", "mutex", "string", "thread", "vector")
"""Headers that most sources include, and in which a compiler spends more time than in our code:
with many sources to compile they (and immintrin.h) are parsed once for each instruction set."""
MANY = 3


def instruction_sets() -> dict:
    """The sets of this machine's family, each with its compiler flags."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return {"portable": [], **(X86_FLAGS if is_x86 else {})}


def find_compiler() -> list:
    """The command of the C++ compiler; empty if there is none."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    return []


class CompileError(Exception):
    """One command of the compiler failed; the message is its output."""


def run(command: list) -> None:
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.stdout.strip():
        print(result.stdout, file=sys.stderr)
    if result.returncode != 0:
        raise CompileError(result.stdout.strip() or f"status {result.returncode}")


class Library:
    """The kernel for one instruction set."""

    def __init__(
        self, compiler: list, version: str, isa: str, flags: list, objects: Path, target: Path
    ) -> None:
        self.compiler = compiler
        self.isa = isa
        self.flags = [*COMMON_FLAGS, *flags, f'-DQUIRE_ISA="{isa}"']
        self.version = version
        self.objects = objects / isa
        self.target = target

    def compile_all(self, sources: list, headers: bytes, pool) -> list:
        """Begin to compile what changed; the jobs, one for each source."""
        if sum(self.is_stale(source, headers) for source in sources) > MANY:
            prelude = pool.submit(self.precompile)
            return [pool.submit(self.compile, source, headers, prelude) for source in sources]
        return [pool.submit(self.compile, source, headers) for source in sources]

    def precompile(self) -> list:
        """Parse the headers that most sources include, once for all of them; the arguments with
        which the compiler uses that. A compiler that cannot do it tells what is wrong when it
        compiles the sources."""
        self.objects.mkdir(parents=True, exist_ok=True)
        header = self.objects / "prelude.h"
        partial = self.objects / f"prelude.{os.getpid()}"
        names = [*PRELUDE, "immintrin.h"] if "-mavx2" in self.flags else PRELUDE
        header.write_text("".join(f"#include <{name}>\n" for name in names))
        command = [*self.compiler, *self.flags, "-x", "c++-header", str(header)]
        try:
            run([*command, "-o", str(partial)])
        except CompileError:
            return []
        partial.replace(self.precompiled)
        return ["-include", str(header)]

    @property
    def precompiled(self) -> Path:
        return self.objects / "prelude.h.gch"

    def inputs(self, source: Path, headers: bytes) -> str:
        """A hash of everything that the object file of ``source`` depends on."""
        command = [*self.compiler, *self.flags, "-c", str(source), "-o"]
        described = repr([self.version, *command]).encode()
        content = b"\0".join([described, headers, source.read_bytes()])
        return hashlib.sha256(content).hexdigest()

    def is_stale(self, source: Path, headers: bytes) -> bool:
        made = self.objects / f"{source.stem}.o"
        known = made.with_suffix(".inputs")
        if not made.exists() or not known.exists():
            return True
        return known.read_text() != self.inputs(source, headers)

    def compile(self, source: Path, headers: bytes, prelude=None) -> Path:
        """The object file of one source, made again if the source, ``headers`` (the content of all
        of them) or the command changed; ``prelude`` is the job of ``precompile``.

        Contents are compared, as they were before the compiler started: an object is younger than a
        source that is edited while it compiles.
        """
        made = self.objects / f"{source.stem}.o"
        inputs = self.inputs(source, headers)
        if self.is_stale(source, headers):
            made.parent.mkdir(parents=True, exist_ok=True)
            known = made.with_suffix(".inputs")
            partial = made.with_suffix(f".{os.getpid()}")
            use = prelude.result() if prelude and begins_with_headers(source) else []
            run([*self.compiler, *self.flags, *use, "-c", str(source), "-o", str(partial)])
            known.unlink(missing_ok=True)
            partial.replace(made)
            known.write_text(inputs)
        return made

    def link(self, objects: list) -> None:
        """The library, put in place whole: a running engine keeps the one that it has loaded."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        partial = self.target.with_name(f"{self.target.name}.{os.getpid()}")
        symbolic = ["-Wl,-Bsymbolic"] if sys.platform.startswith("linux") else []
        run([*self.compiler, *LINK_FLAGS, *symbolic, *map(str, objects), "-o", str(partial)])
        partial.replace(self.target)


class BuildKernel(build_ext):
    """Compiles all libraries together, so that every core has a file to compile until the end."""

    def build_extensions(self) -> None:
        compiler = find_compiler()
        sets = instruction_sets()
        if not compiler:
            reason = "no C++ compiler was found: install g++ or clang++, or set CXX"
            self.write_record(None, dict.fromkeys(sets, reason))
            return
        version = version_of(compiler)
        libraries = [
            Library(compiler, version, isa, flags, OBJECTS, self.folder / f"_kernel_{isa}.so")
            for isa, flags in sets.items()
        ]
        self.write_record(version, build(libraries))

    @property
    def folder(self) -> Path:
        return Path(self.build_lib) / PACKAGE

    def write_record(self, compiler, failures: dict) -> None:
        """What was built and why the rest was not, for ``quire doctor`` and the log."""
        self.folder.mkdir(parents=True, exist_ok=True)
        record = {"compiler": compiler, "failures": failures}
        (self.folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        for isa, reason in failures.items():
            print(f"kernel {isa}: not built: {reason}", file=sys.stderr)

    def get_outputs(self) -> list:
        return sorted(str(path) for path in self.folder.glob("_kernel_*"))

    def get_output_mapping(self) -> dict:
        in_source = ROOT / "src" / PACKAGE
        return {path: str(in_source / Path(path).name) for path in self.get_outputs()}

    def copy_extensions_to_source(self) -> None:
        """With ``--inplace``, as for an editable install: the files go beside the sources."""
        for stale in (ROOT / "src" / PACKAGE).glob("_kernel_*.so"):
            if not (self.folder / stale.name).exists():
                stale.unlink()
        for built, target in self.get_output_mapping().items():
            partial = Path(f"{target}.{os.getpid()}")
            shutil.copy2(built, partial)
            partial.replace(target)


def begins_with_headers(source: Path) -> bool:
    """Whether headers may be included before the source's first line; not before a pragma that
    changes how they are compiled."""
    lines = source.read_text(encoding="utf-8").splitlines()
    return next((line for line in lines if line.startswith("#")), "").startswith("#include")


def version_of(compiler: list) -> str:
    result = subprocess.run([*compiler, "--version"], capture_output=True, text=True)
    return result.stdout.split("\n", 1)[0].strip() or " ".join(compiler)


def build(libraries: list) -> dict:
    """Compile and link; the first line of what went wrong for each set that failed."""
    sources = sorted(SOURCES.glob("*.cpp"))
    headers = b"\0".join(path.read_bytes() for path in sorted(SOURCES.glob("*.h")))
    failures = {}
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        jobs = {library.isa: library.compile_all(sources, headers, pool) for library in libraries}
        for library in libraries:
            try:
                library.link([job.result() for job in jobs[library.isa]])
            except (CompileError, OSError) as exc:
                library.target.unlink(missing_ok=True)
                failures[library.isa] = first_error(str(exc))
            finally:
                library.precompiled.unlink(missing_ok=True)  # 60 MB, and it knows no later headers
    return failures


def first_error(output: str) -> str:
    lines = [line.strip() for line in output.split("\n") if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "unknown")


setup(
    ext_modules=[
        Extension(
            f"quire.engine.cpu._kernel_{isa}",
            sources=sorted(os.path.relpath(path, ROOT) for path in SOURCES.glob("*.cpp")),
            depends=sorted(os.path.relpath(path, ROOT) for path in SOURCES.glob("*.h")),
            optional=True,
        )
        for isa in instruction_sets()
    ],
    cmdclass={"build_ext": BuildKernel},
)
