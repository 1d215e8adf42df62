"""Flags by which programs beside the daemons reach etcd."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import ValidationError

from registry.model.keys import DEFAULT_PREFIX
from registry.runtime.commands import flag
from registry.runtime.flags import complaint_of
from registry.runtime.program import variable_of
from registry.runtime.settings import DaemonSettings


def flag_of_daemon(name: str, help: str, **more: Any) -> Any:  # noqa: A002, ANN401 - as `flag` takes them
    """An option with its environment variable."""
    return flag(name, help=help, envvar=variable_of(name), **more)


@dataclass(frozen=True, slots=True)
class EtcdReach:
    """Flags by which etcd is reached."""

    etcd: Annotated[str, flag_of_daemon("--etcd", "etcd's members, HOST:PORT[,HOST:PORT…].")]
    prefix: Annotated[str, flag_of_daemon("--prefix", "Prefix of all keys in etcd.")] = DEFAULT_PREFIX
    etcd_tls_ca: Annotated[Path | None, flag_of_daemon("--etcd-tls-ca", "CA of etcd.")] = None
    etcd_tls_cert: Annotated[Path | None, flag_of_daemon("--etcd-tls-cert", "Our certificate.")] = None
    etcd_tls_key: Annotated[Path | None, flag_of_daemon("--etcd-tls-key", "Its key.")] = None
    etcd_user: Annotated[str | None, flag_of_daemon("--etcd-user", "User of etcd.")] = None
    etcd_password_file: Annotated[Path | None, flag_of_daemon("--etcd-password-file", "Its password.")] = None
    insecure: Annotated[bool, flag_of_daemon("--insecure", "Send the password unencrypted over the network.")] = False

    def settings(self) -> DaemonSettings:
        """The same, checked.

        Raises:
            ValueError: they cannot be used; the message names the flag.
        """
        try:
            return DaemonSettings.model_validate(asdict(self))
        except ValidationError as problem:
            raise ValueError(complaint_of(problem)) from problem
