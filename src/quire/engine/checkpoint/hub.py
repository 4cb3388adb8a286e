"""Downloads from the Hugging Face hub, for models that are named by a hub id.

The only module that imports the hub's client, whose import takes longer than reading the small
files of a model.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from quire.core.errors import ModelNotFound

_WANTED_FILES = ["*.json", "*.safetensors", "*.jinja"]
_SECOND_COPIES = ["consolidated*", "original/*"]
"""File patterns of the same weights in the publisher's own format, which would double the
download."""


def download(hub_id: str) -> Path:
    """The repository's directory in the hub's cache, downloaded if need be.

    Raises:
        ModelNotFound: no such repository, or it cannot be reached.
    """
    try:
        return Path(
            snapshot_download(hub_id, allow_patterns=_WANTED_FILES, ignore_patterns=_SECOND_COPIES)
        )
    except GatedRepoError as exc:
        raise ModelNotFound(
            f"the hub gives {hub_id!r} to those alone who have accepted its terms: accept them at "
            f"huggingface.co/{hub_id} and set HF_TOKEN to a token of that account"
        ) from exc
    except RepositoryNotFoundError as exc:
        raise ModelNotFound(
            f"no directory {hub_id!r}, and the hub has no such repository or it is private: check "
            "the spelling, or set HF_TOKEN to a token that may read it"
        ) from exc
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as exc:
        first_line = (str(exc).splitlines() or [type(exc).__name__])[0]
        raise ModelNotFound(
            f"no directory {hub_id!r}, and the hub repository of that name cannot be downloaded "
            f"({first_line}): check the spelling and the network, or download it where there is "
            f"one ('hf download {hub_id} --local-dir DIRECTORY') and give that directory"
        ) from exc
