"""Makes ``.venv`` and installs the pinned requirements into it; run by the Makefile.

Uses only the standard library, and only syntax that an old Python can parse, so that it can report
the problem instead of failing with a syntax error. A stamp in the environment records the hash of
everything that its content depends on; nothing happens while the stamp is current.
"""

import argparse
import glob
import hashlib
import json
import os
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MIN_PYTHON = (3, 11)
KERNEL = os.path.join("src", "quire", "engine", "cpu")
LOCKS = {
    "runtime": ["requirements.lock"],
    "dev": ["requirements.lock", "requirements-dev.lock", "requirements-nixl.lock"],
}


class InstallError(Exception):
    """The environment cannot be made; the message contains the remedy."""


def pinned(locks: list) -> list:
    """Return the ``name==version`` lines of the locks, torch first."""
    lines = []
    for lock in locks:
        with open(os.path.join(ROOT, lock), encoding="utf-8") as file:
            lines += [line.strip() for line in file]
    pins = [line for line in lines if line and not line.startswith(("#", "-"))]
    return sorted(pins, key=lambda pin: not pin.startswith("torch=="))


def fingerprint(locks: list) -> str:
    """A hash of the locks, the project's metadata, the kernel's sources, the interpreter and the
    path of the checkout.

    The path counts because the package is installed editable: a moved checkout needs a new
    environment.
    """
    digest = hashlib.sha256(f"{sys.version} {sys.platform} {ROOT}".encode())
    sources = [
        os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, KERNEL, "csrc", "*"))
    ]
    for name in [*locks, "pyproject.toml", "setup.py", *sorted(sources)]:
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def run(step: str, command: list, remedy: str) -> None:
    """Run one step; raise ``InstallError`` with the remedy if it fails.

    Pip is quiet but for warnings and errors, so a terminal shows how long the step has taken.
    """
    line = "==> " + step
    if sys.stdout.isatty():
        code = call_counting(command, line)
    else:
        print(line, flush=True)
        code = subprocess.call(command, cwd=ROOT)
    if code != 0:
        raise InstallError(
            "{!r} ended with status {}: {}".format(" ".join(command[:6]), code, remedy)
        )


def call_counting(command: list, line: str) -> int:
    """Run ``command`` and return its status; meanwhile ``line`` is written anew each second, with
    the time."""
    started_s = time.monotonic()
    print(line, end="", flush=True)
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        while process.poll() is None:
            try:
                process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                print(f"\r{line} ({time.monotonic() - started_s:.0f} s)", end="", flush=True)
    finally:
        process.kill()
        process.wait()
        print(flush=True)
    return process.returncode


def make_environment(venv: str) -> None:
    """Create the virtual environment with this interpreter, unless a complete one exists."""
    if os.path.exists(os.path.join(venv, "bin", "pip")):
        return
    run(
        "creating {} with Python {}.{}.{}".format(venv, *sys.version_info[:3]),
        [sys.executable, "-m", "venv", "--clear", venv],
        "Python lacks its venv module; on Debian and Ubuntu install the package python3-venv",
    )


def install(venv: str, locks: list) -> None:
    """Install the pins (torch alone and first, so that no other package chooses its build), then
    Quire.

    Pip uses one core: the kernel is compiled beside it, and pip leaves the byte code to all cores.
    """
    python = os.path.join(venv, "bin", "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-warn-script-location", "--no-compile"]
    online = "read pip's message above; installing needs access to a Python package index"
    pins = pinned(locks)
    tools = [pin for pin in pins if pin.startswith("setuptools==")]
    run("installing " + tools[0], pip + tools, online)
    kernel = begin_kernel(python)
    try:
        constraints = [argument for lock in locks for argument in ("-c", lock)]
        run(f"installing {pins[0]} (the largest part)", pip + pins[:1] + constraints, online)
        requirements = [argument for lock in locks for argument in ("-r", lock)]
        run(f"installing {len(pins)} pinned packages", pip + requirements, online)
        compile_modules(python)
        kernel.wait()
    finally:
        kernel.kill()
        kernel.wait()
    run(
        "installing quire from this checkout",
        [*pip, "--no-deps", "--no-build-isolation", "-e", "."],
        "pyproject.toml and the files that it names must be complete",
    )


def begin_kernel(python: str) -> subprocess.Popen:
    """Compile the CPU kernel's objects, which the installation of Quire then only links.

    What fails here fails there again, and is told by ``kernel_line``.
    """
    print("==> compiling the CPU kernel meanwhile", flush=True)
    return subprocess.Popen(
        [python, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def compile_modules(python: str) -> None:
    """Write the byte code of all packages, as pip does without ``--no-compile``, on all cores.

    Templates of modules that some packages carry cannot be compiled, which is no error for pip
    either.
    """
    print("==> compiling the packages' modules", flush=True)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.check_output([python, "-c", where], text=True).strip()
    compiler = [python, "-W", "ignore", "-m", "compileall", "-qq", "-j", "0", packages]
    subprocess.call(compiler, cwd=ROOT)


def kernel_line() -> str:
    """Return one line about the result of building the native CPU kernel, which is optional."""
    try:
        with open(os.path.join(ROOT, KERNEL, "_kernel_build.json"), encoding="utf-8") as file:
            record = json.load(file)
    except (OSError, ValueError):
        return "the CPU kernel was not built: the engine uses PyTorch, which is slower"
    failures = record["failures"]
    built = sorted(glob.glob(os.path.join(ROOT, KERNEL, "_kernel_*.so")))
    names = [os.path.basename(path)[len("_kernel_") : -len(".so")] for path in built]
    if not names:
        reason = next(iter(failures.values()), "no reason was recorded")
        return f"the CPU kernel was not built ({reason}): the engine uses PyTorch, which is slower"
    missing = "".join(f"; not {isa}: {reason}" for isa, reason in sorted(failures.items()))
    return "the CPU kernel was built for {}{}".format(", ".join(names), missing)


def stamp_path(venv: str, name: str) -> str:
    return os.path.join(venv, f"quire-{name}.stamp")


def is_current(venv: str, name: str) -> bool:
    """Return whether the set ``name`` was installed from the current state of the checkout."""
    try:
        with open(stamp_path(venv, name), encoding="utf-8") as file:
            return file.read().strip() == fingerprint(LOCKS[name])
    except FileNotFoundError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--venv", default=".venv")
    parser.add_argument("--set", choices=sorted(LOCKS), default="runtime")
    arguments = parser.parse_args()
    if sys.version_info < MIN_PYTHON:
        raise InstallError(
            "this is Python {}.{}, Quire needs {}.{} or newer: install one and run "
            "'make PYTHON=/path/to/python3 ...'".format(*sys.version_info[:2], *MIN_PYTHON)
        )
    venv = os.path.join(ROOT, arguments.venv)
    if is_current(venv, arguments.set):
        return
    started_s = time.monotonic()
    make_environment(venv)
    install(venv, LOCKS[arguments.set])
    for name, locks in LOCKS.items():
        if set(locks) <= set(LOCKS[arguments.set]):
            with open(stamp_path(venv, name), "w", encoding="utf-8") as file:
                file.write(fingerprint(locks) + "\n")
    print("==> " + kernel_line(), flush=True)
    print(f"==> ready after {time.monotonic() - started_s:.0f} s", flush=True)


if __name__ == "__main__":
    try:
        main()
    except InstallError as exc:
        sys.exit(f"error: {exc}")
