"""Copies a trained folder to a place of its own before it is published.

Trainers rotate their checkpoints: what a generation names would be gone when a replica restarts elsewhere, or when
somebody rolls back. A copy at a place that nothing rotates stays as long as people want it. `loraplane publish` puts
its files by the same code, after it has converted them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from registry.client.publication import Upload
from registry.client.upload.destination import Destination, DestinationTaken, Unfinished, destination, put
from registry.lora.findings import CannotPublish
from registry.model.errors import AlreadyExists, FailedPrecondition, InvalidArgument, Reason, Unavailable
from registry.model.source_uri import without_secrets
from registry.runtime.program import install_remedy
from registry.sources.base import ArtifactError, StoreError
from registry.sources.credentials import Credentials, HeldCredential
from registry.sources.credentials_file import read_credentials


def uploaded(folder: Path, upload: Upload) -> str:
    """URI of the copy of an adapter's folder; what is there already, to the last byte, is not copied again.

    Raises:
        InvalidArgument: nothing can be written there, or there is no such credential.
        AlreadyExists: with reason DESTINATION_TAKEN, other files are there; they are never replaced.
        FailedPrecondition: with reason CANNOT_PUBLISH, the store refused it, or what speaks with it is not installed.
        Unavailable: with reason UPLOAD_UNFINISHED, the store was not reached or broke off. Repeat it, and it goes on.
    """
    with _translated(upload):
        there = destination(str(upload.to))
        put(folder, there, _held(there, upload))
    return there.uri


def _held(there: Destination, upload: Upload) -> HeldCredential | None:
    if isinstance(there.place, Path):
        return None
    known = read_credentials(Path(upload.credentials)) if upload.credentials else None
    return Credentials(known).hold(upload.credential or None, there.place)


@contextmanager
def _translated(upload: Upload) -> Iterator[None]:
    try:
        yield
    except CannotPublish as error:
        raise FailedPrecondition(Reason.CANNOT_PUBLISH, str(error), field="upload") from error
    except DestinationTaken as error:
        message = f"{error} is there with other content; what is published is never replaced: choose another place"
        raise AlreadyExists(Reason.DESTINATION_TAKEN, message, field="upload") from error
    except Unfinished as error:
        raise Unavailable(Reason.UPLOAD_UNFINISHED, str(error), field="upload") from error
    except ModuleNotFoundError as error:
        raise FailedPrecondition(Reason.CANNOT_PUBLISH, install_remedy(error, "files"), field="upload") from error
    except (ArtifactError, StoreError) as error:
        raise InvalidArgument(Reason.INVALID_FIELD, f"{error}", field="upload") from error
    except OSError as error:
        where = without_secrets(str(upload.to))
        message = f"cannot copy to {where}: {error.strerror}: {error.filename}"
        raise FailedPrecondition(Reason.CANNOT_PUBLISH, message, field="upload") from error
