"""Volumes of a pod as folders of this machine, with the owners and modes that a node gives them."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.pods.container import Mount, NotPlayed, expanded
from tests.support.pods.images import Image, repository

Manifest = Mapping[str, Any]


@dataclass
class Objects:
    """What the API server has: the manifests that were applied, by kind and name, and what nodes have beside them.

    `claims`: folder of each claim. `images`: by repository.
    """

    images: Mapping[str, Image]
    claims: Path
    found: dict[tuple[str, str], Manifest] = field(default_factory=dict)

    def apply(self, *manifests: Manifest) -> None:
        """Adds them, or replaces those of their names."""
        self.found |= {(one["kind"], one["metadata"]["name"]): one for one in manifests}

    def data(self, kind: str, name: str) -> dict[str, bytes]:
        """Entries of a Secret or ConfigMap.

        Raises:
            LookupError: there is none of that name, and the message is the event that a pod then has.
        """
        one = self.found.get((kind, name))
        if one is None:
            raise LookupError(f'{kind.lower()} "{name}" not found')
        plain = {key: text.encode() for key, text in one.get("stringData", {}).items()}
        told = {
            key: base64.b64decode(text) if kind == "Secret" else text.encode()
            for key, text in one.get("data", {}).items()
        }
        return told | plain

    def image(self, name: str) -> Image:
        """What stands for an image.

        Raises:
            NotPlayed: nothing does.
        """
        if repository(name) not in self.images:
            raise NotPlayed(f"there is no image {name} here")
        return self.images[repository(name)]


def make(pod: str, spec: Manifest, claims: Mapping[str, str], objects: Objects, folder: Path) -> dict[str, Path]:
    """Makes all volumes of a pod. `claims`: of a StatefulSet's templates, the claim by the volume's name.

    Raises:
        LookupError: a Secret, or a ConfigMap, is not there yet.
        NotPlayed: a volume is of a kind that is not known here.
    """
    group = spec.get("securityContext", {}).get("fsGroup", 0)
    made = {name: _folder(objects.claims / claim, group) for name, claim in claims.items()}
    for volume in spec.get("volumes", []):
        made[volume["name"]] = _volume(volume, objects, folder / "volumes" / volume["name"], group)
    return made


def _volume(volume: Manifest, objects: Objects, folder: Path, group: int) -> Path:
    match {key: value for key, value in volume.items() if key != "name"}:
        case {"emptyDir": _}:
            return _folder(folder, group)
        case {"secret": {"secretName": str(name), **options}}:
            return _files(
                _folder(folder, group), objects.data("Secret", name), group, int(str(options.get("defaultMode", 0o644)))
            )
        case {"configMap": {"name": str(name), **options}}:
            return _files(
                _folder(folder, group),
                objects.data("ConfigMap", name),
                group,
                int(str(options.get("defaultMode", 0o644))),
            )
        case {"hostPath": {"path": str(path)}}:
            return Path(path)
        case {"persistentVolumeClaim": {"claimName": str(name)}}:
            return _folder(objects.claims / name, group)
        case {"image": {"reference": str(name)}}:
            return _image_folder(objects.image(name), folder)
    raise NotPlayed(f"volume {volume}")


def _folder(folder: Path, group: int) -> Path:
    """As of an emptyDir: everybody may write, and what is written gets the pod's group."""
    if not folder.exists():
        folder.mkdir(parents=True)
        os.chown(folder, 0, group)
        folder.chmod(0o2777 if group else 0o777)
    return folder


def _files(folder: Path, entries: Mapping[str, bytes], group: int, mode: int) -> Path:
    for name, content in entries.items():
        file = folder / name
        file.write_bytes(content)
        os.chown(file, 0, group)
        file.chmod(mode)
    return folder


def _image_folder(image: Image, folder: Path) -> Path:
    """A tree with the image's folders at their paths."""
    for path, source in image.folders.items():
        place = folder / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_symlink():
            place.symlink_to(source)
    return folder


def mounts(container: Manifest, volumes: Mapping[str, Path]) -> list[Mount]:
    """What of the volumes a container sees.

    Raises:
        NotPlayed: a mount has more than a path.
    """
    found = []
    for one in container.get("volumeMounts", []):
        if {*one} - {"name", "mountPath", "readOnly"}:
            raise NotPlayed(f"volumeMount {one}")
        found.append(Mount(volumes[one["name"]], one["mountPath"], one.get("readOnly", False)))
    return found


def variables(container: Manifest, pod: Manifest, address: str, objects: Objects) -> dict[str, str]:
    """Environment of a container, each value with those before it put in.

    Raises:
        LookupError: a Secret, or a ConfigMap, is not there yet.
        NotPlayed: a value comes from elsewhere.
    """
    found: dict[str, str] = {}
    for one in container.get("envFrom", []):
        found |= {key: text.decode() for key, text in objects.data("ConfigMap", one["configMapRef"]["name"]).items()}
    for one in container.get("env", []):
        found[one["name"]] = (
            expanded(one["value"], found) if "value" in one else _from(one["valueFrom"], pod, address, objects)
        )
    return found


def _from(source: Manifest, pod: Manifest, address: str, objects: Objects) -> str:
    match source:
        case {"secretKeyRef": {"name": str(name), "key": str(key)}}:
            return objects.data("Secret", name)[key].decode()
        case {"fieldRef": {"fieldPath": "metadata.name"}}:
            return str(pod["metadata"]["name"])
        case {"fieldRef": {"fieldPath": "status.podIP"}}:
            return address
        case {"fieldRef": {"fieldPath": str(path)}} if path.startswith("metadata.labels['"):
            return str(pod["metadata"]["labels"].get(path.partition("'")[2].rstrip("']"), ""))
    raise NotPlayed(f"valueFrom {source}")
