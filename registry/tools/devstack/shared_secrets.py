"""Secrets of an installation in containers, of which each part is given its own.

All are made in one folder, and each part has a folder with what it needs and nothing else. A part that is taken over so
tells nothing of the others: only the one folder has the keys of the authorities, of etcd's user root, and of everybody.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from registry.runtime.commands import command, flag
from registry.runtime.own_paths import write_whole
from registry.tools.devstack import secure
from registry.tools.devstack.certificates import make_secrets, make_token
from registry.tools.devstack.secure import AuthorityName, SecretFolder, wanted_certificates

# For the users of other images, who are in the group of the folder.
_MODE = 0o640


def shares(folder: SecretFolder, replicas: Sequence[str], members: Sequence[str]) -> dict[str, list[Path]]:
    """Files of `folder` by the part that needs them. Pure.

    Parts are etcd, admin, picker, prometheus, operator, and for each replica REPLICA (its sidecar) and engine-REPLICA.
    """
    etcd, services, operators = (folder.authority(name) for name in AuthorityName)
    given: dict[str, list[Path]] = {
        "etcd": [etcd, *_pairs(folder, *map(secure.etcd_member, members))],
        "admin": [
            *(etcd, services, operators, folder.access),
            *_pairs(folder, secure.ETCD_ADMIN, secure.service_file(secure.ADMIN_SERVICE)),
        ],
        "picker": [
            *(services, operators),
            *_pairs(folder, secure.ROUTER_FILE, secure.service_file(secure.PICKER_SERVICE)),
        ],
        "prometheus": [services, *_pairs(folder, secure.SCRAPER_FILE)],
        "operator": [services, *_pairs(folder, secure.OPERATOR_FILE)],
    }
    for one in replicas:
        own = _pairs(folder, secure.etcd_file(one), secure.service_file(one))
        given[one] = [etcd, services, operators, *own, folder.control_token(one)]
        given[f"engine-{one}"] = [folder.control_token(one)]
    return given


def _pairs(folder: SecretFolder, *files: str) -> list[Path]:
    return [path for one in files for path in (folder.certificate(one), folder.key(one))]


def hand_out(given: Mapping[str, Sequence[Path]], into: Path) -> list[str]:
    """Writes to the folder of each part, below `into`, what it does not have as it is.

    Returns:
        PART/FILE of each that was written.

    Raises:
        OSError: a file cannot be read or written.
    """
    written = list[str]()
    for part, files in given.items():
        (into / part).mkdir(mode=0o750, parents=True, exist_ok=True)
        for file in files:
            content, there = file.read_bytes(), into / part / file.name
            if not there.exists() or there.read_bytes() != content:
                write_whole(there, content, mode=_MODE)
                written.append(f"{part}/{file.name}")
    return written


def make_and_share(
    secrets: Annotated[Path, flag("--secrets", metavar="DIR", help="Folder with all secrets.")],
    into: Annotated[Path, flag("--into", metavar="DIR", help="Folder with a folder for each part.")],
    pool: Annotated[str, flag("--pool", metavar="POOL", help="Pool of the replicas.")],
    replica: Annotated[list[str], flag("--replica", metavar="ID", help="A replica (repeatable).")],
    member: Annotated[list[str], flag("--member", metavar="NAME", help="A member of etcd (repeatable).")],
) -> None:
    """Make the secrets of an installation that are missing or end soon, and give each part its own.

    A repetition changes nothing more. The access file is never written again in --secrets; what was changed there is
    given to the admin services.
    """
    folder = SecretFolder(secrets)
    services = (secure.ADMIN_SERVICE, secure.PICKER_SERVICE, *replica)
    try:
        made = make_secrets(folder, wanted_certificates(pool, replica, member, services))
        made += [one for one in replica if make_token(folder.control_token(one))]
        written = hand_out(shares(folder, replica, member), into)
    except OSError as error:
        sys.exit(f"{error.filename or secrets} cannot be used: {error.strerror}")
    except ValueError as error:
        sys.exit(f"{secrets} holds what is no certificate; remove it, and begin anew: {error}")
    sys.stdout.write(f"made {len(made)} secrets, gave {len(written)} files to their parts\n")


if __name__ == "__main__":
    command("shared-secrets", make_and_share)()
