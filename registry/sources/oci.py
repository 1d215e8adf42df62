"""Adapters in a registry of containers, as layers that a manifest names.

The layers are those of ModelPack, archives as of an image, or single files as oras pushes them. Every layer that is
read is read to its end and compared with its digest, and the manifest with its own where that is what the URI names: a
registry can send other bytes than those meant, and they come to nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from registry.lora.digest import FILES
from registry.lora.signing.statement import SIGNATURE_FILE
from registry.model.source_uri import SourcePrefix, SourceUri, is_movable
from registry.model.stored import first_error, read_json
from registry.sources.archive import (
    MAX_UNPACKED_BYTES,
    GatheredFiles,
    bundle_in_archive,
    gather_from,
    leads_out,
    parts_of,
)
from registry.sources.base import ArtifactError, Receive, Source, Stop, beginning
from registry.sources.connections import SourceRequests
from registry.sources.credentials import HeldCredential
from registry.sources.failures import MISSING_STATUSES, retries, retries_from_start, status_error
from registry.sources.getter import Getter
from registry.sources.http import Download, Web
from registry.sources.origins import OriginVisits
from registry.sources.registry_login import RegistryGetter
from registry.sources.urls import Reach, WebUrl, is_literal, parse_url

MAX_MANIFEST_BYTES = 1 << 20
MAX_LAYERS = 200
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_ACCEPT = (("Accept", ", ".join(_MANIFESTS)),)
_MODEL = ("application/vnd.cncf.model.", "application/vnd.cnai.model.")
_TAR, _TAR_GZIP = (".tar",), (".tar+gzip", ".tar.gzip")
# What oras gives to each file, whatever is in it; its name then tells more.
_TYPE_OF_ORAS = "application/vnd.oci.image.layer.v1.tar"
_GZIPPED_NAMES = (".tar.gz", ".tgz")
_PATHS = ("org.cncf.model.filepath", "org.cnai.model.filepath", "org.opencontainers.image.title")
_IS_FOLDER = "io.deis.oras.content.unpack"
_LayerForm = Literal["file", "tar", "tar+gzip", "another file", "foreign"]


# What a registry says of what it has not; a 404 without is that of whatever stands before it.
_UNKNOWN = frozenset({"MANIFEST_UNKNOWN", "NAME_UNKNOWN"})


class OciLayer(BaseModel):
    """One layer, as a manifest names it."""

    model_config = ConfigDict(frozen=True, strict=True)

    media_type: Annotated[str, Field(alias="mediaType", max_length=255)]
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0, le=1 << 60)]
    annotations: dict[str, str] | None = None

    @property
    def path(self) -> str:
        """The path of its one file, or of what is packed in it; empty: it is not said."""
        said = self.annotations or {}
        return next((said[name] for name in _PATHS if said.get(name)), "")

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The folder of its path; empty: it lies at the top."""
        return "/".join(parts_of(self.path)[:-1])

    @property
    def form(self) -> _LayerForm:
        """Form of its bytes. oras gives files the type of an archive unless it is told another, and packs folders."""
        if (self.annotations or {}).get(_IS_FOLDER) == "true":
            return "tar+gzip"
        is_model = self.media_type.startswith(_MODEL)
        if self.name in {*FILES, SIGNATURE_FILE} and (not is_model or self.media_type.endswith(".raw")):
            return "file"
        if self.name and self.media_type == _TYPE_OF_ORAS and not self.name.endswith(_TAR):
            return "tar+gzip" if self.name.endswith(_GZIPPED_NAMES) else "another file"
        if self.media_type.endswith(_TAR):
            return "tar"
        return "tar+gzip" if self.media_type.endswith(_TAR_GZIP) else "foreign"

    @property
    def is_packed(self) -> bool:
        """True if it is an archive that is read."""
        return self.form in {"tar", "tar+gzip"}


class OciManifest(BaseModel):
    """The part of a manifest that is read."""

    model_config = ConfigDict(frozen=True, strict=True)

    layers: Annotated[list[OciLayer], Field(min_length=1, max_length=MAX_LAYERS)]


class _RegistryError(BaseModel):
    code: str


class _RegistryErrors(BaseModel):
    errors: Annotated[list[_RegistryError], Field(max_length=MAX_LAYERS)]


@dataclass(frozen=True, slots=True)
class RegistrySource(Source):
    """Artifact of a registry of containers.

    Attributes:
        web: how to get there.
        uri: which one.
        named: URLs that the operator allowed, and the registry's own.
        held: the credential of the record.
    """

    web: Web
    uri: SourceUri
    named: tuple[SourcePrefix, ...]
    held: HeldCredential | None

    def fetch(self, receive: Receive, stop: Stop) -> None:
        """See `Source.fetch`."""
        with self._getter(stop) as getter:
            _, layers = self._manifest(getter, stop)
            retries_from_start(stop)(self._receive_all, getter, layers, receive, stop)

    def signature(self, stop: Stop) -> bytes | None:
        """See `Source.signature`. Archives are read as far as it takes."""
        with self._getter(stop) as getter:
            _, layers = self._manifest(getter, stop)
            files = [layer for layer in layers if layer.form == "file"]
            folder = next((layer.folder for layer in files if layer.name in FILES), "")
            own = [layer for layer in files if layer.name == SIGNATURE_FILE and layer.folder == folder]
            for layer in own or [layer for layer in layers if layer.is_packed]:
                found = retries_from_start(stop)(self._bundle_in, getter, layer, stop)
                if found is not None:
                    return found
            return None

    def version(self, stop: Stop) -> str:
        """See `Source.version`: the digest that its tag has now."""
        if not is_movable(self.uri):
            return self.uri.commit
        with self._getter(stop) as getter:
            return self._manifest(getter, stop)[0]

    def is_gone(self, stop: Stop) -> bool:
        """See `Source.is_gone`. The manifest alone is asked for: no registry removes layers that one names."""
        with self._getter(stop) as getter:
            answer = getter.get(self._url("manifests", self.uri.commit), _ACCEPT)
            if answer.status == 200:
                answer.close()
                return False
            if answer.status not in MISSING_STATUSES:
                answer.close()
                raise status_error(answer.status, answer.url.place, "the manifest")
            return not _UNKNOWN.isdisjoint(_codes(beginning(answer.chunks(), MAX_MANIFEST_BYTES)))

    @contextmanager
    def _getter(self, stop: Stop) -> Iterator[Getter]:
        with closing(SourceRequests(self.web.connections, stop)) as requests:
            repository = repository_prefix(self.uri)
            visits = OriginVisits(self.web.origins)
            yield RegistryGetter(requests, self.named, self.held, visits, repository)

    def _url(self, kind: str, name: str) -> WebUrl:
        return parse_url(f"{repository_prefix(self.uri)}/{kind}/{name}")

    @property
    def _told(self) -> str:
        mark = ":" if is_movable(self.uri) else "@"
        return f"oci://{'/'.join((self.uri.authority, *self.uri.path))}{mark}{self.uri.commit}"

    def _manifest(self, getter: Getter, stop: Stop) -> tuple[str, Sequence[OciLayer]]:
        """The manifest's digest and its layers.

        Raises:
            ArtifactError: it cannot be had, is not the one that is meant, or is none of an adapter.
        """
        content = retries(stop)(self._manifest_bytes, getter)
        if len(content) > MAX_MANIFEST_BYTES:
            raise ArtifactError("too_large", f"{self._told} has a manifest of more than {MAX_MANIFEST_BYTES} bytes")
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if not is_movable(self.uri) and digest != self.uri.commit:
            raise self._other_bytes("the manifest", digest)
        return digest, self._layers(content)

    def _manifest_bytes(self, getter: Getter) -> bytes:
        answer = getter.get(self._url("manifests", self.uri.commit), _ACCEPT)
        if answer.status != 200:
            answer.close()
            raise status_error(answer.status, answer.url.place, "the manifest")
        return beginning(answer.chunks(), MAX_MANIFEST_BYTES + 1)

    def _layers(self, content: bytes) -> Sequence[OciLayer]:
        try:
            value = read_json(content)
            if isinstance(value, dict) and "manifests" in value and "layers" not in value:
                raise self._no_adapter("is an index of several artifacts; name one of them by its digest")
            layers = OciManifest.model_validate(value).layers
        except ValidationError as error:
            raise self._no_adapter(f"has a manifest that cannot be used: {first_error(error)}") from None
        except ValueError:
            raise self._no_adapter("has a manifest that is no JSON") from None
        twice = {one.digest for at, one in enumerate(layers) if one.digest in {other.digest for other in layers[:at]}}
        if twice:
            raise self._no_adapter(f"names the layer {min(twice)} twice; push each file once")
        return layers

    def _receive_all(self, getter: Getter, layers: Sequence[OciLayer], receive: Receive, stop: Stop) -> None:
        read = [layer for layer in layers if layer.is_packed or layer.form == "file"]
        if sum(layer.size for layer in read) > MAX_UNPACKED_BYTES:
            raise ArtifactError("too_large", f"{self._told} has layers of more than {MAX_UNPACKED_BYTES} bytes")
        files = GatheredFiles()
        for layer in read:
            if layer.is_packed:
                content, below = self._content(getter, layer, stop), parts_of(layer.path)
                gather_from(content, files, receive, is_gzipped=layer.form == "tar+gzip", below=below)
            elif files.takes(self._folder(layer), layer.name):
                receive(layer.name, layer.size, self._content(getter, layer, stop))
        if files.missing:
            others = sorted({layer.media_type for layer in layers if layer.form == "foreign"})
            unread = f"; layers of these types are not read: {', '.join(others[:3])}" if others else ""
            remedy = "push the two files or their folder"
            raise self._no_adapter(f"has no layer with {min(files.missing)}; {remedy}{unread}")

    def _folder(self, layer: OciLayer) -> str:
        """The folder of a file, which is a word alone: nothing is written there."""
        if leads_out(layer.path):
            found = f"names the file {layer.path[:200]!r}, which leads out of it; push it from its own folder"
            raise ArtifactError("bad_archive", f"{self._told} {found}")
        return layer.folder

    def _content(self, getter: Getter, layer: OciLayer, stop: Stop) -> Iterator[bytes]:
        """The bytes of a layer.

        Raises:
            ArtifactError: they cannot be had, or, at their end, are not those that its digest is of.
        """
        size_bytes, chunks = Download(getter, self._url("blobs", layer.digest), stop).content()
        if size_bytes != layer.size:
            raise self._other_bytes(f"the layer {layer.digest} of {layer.size} bytes", f"{size_bytes} bytes")
        found = hashlib.sha256()
        for chunk in chunks:
            found.update(chunk)
            yield chunk
        if f"sha256:{found.hexdigest()}" != layer.digest:
            raise self._other_bytes(f"the layer {layer.digest}", f"bytes of sha256:{found.hexdigest()}")

    def _bundle_in(self, getter: Getter, layer: OciLayer, stop: Stop) -> bytes | None:
        content = self._content(getter, layer, stop)
        if layer.form == "file":
            return beginning(content)
        return bundle_in_archive(content, is_gzipped=layer.form == "tar+gzip", below=parts_of(layer.path))

    def _other_bytes(self, meant: str, found: str) -> ArtifactError:
        message = f"the registry of {self._told} sends {found} for {meant}; push it anew. It is tried again"
        return ArtifactError("digest_mismatch", message)

    def _no_adapter(self, found: str) -> ArtifactError:
        return ArtifactError("not_an_adapter", f"{self._told} {found}")


def _codes(content: bytes) -> set[str]:
    """Codes of the errors in a registry's answer."""
    try:
        return {one.code for one in _RegistryErrors.model_validate(read_json(content)).errors}
    except ValueError:
        return set()


def repository_prefix(uri: SourceUri | SourcePrefix) -> SourcePrefix:
    """URLs of a repository, or of all below a prefix, in the distribution API.

    Registries are asked over TLS, but for those of the machine itself.
    """
    host = parse_url(f"https://{uri.authority}").host.strip("[]")
    is_here = host == "localhost" or (is_literal(host) and Reach.LOCALHOST.allows(host))
    return SourcePrefix("http" if is_here else "https", uri.authority, ("v2", *uri.path))


def registry_source(
    web: Web, uri: SourceUri, named: Sequence[SourcePrefix], held: HeldCredential | None
) -> RegistrySource:
    """The source at an oci:// URI. Whoever names a registry names all of its host: tokens and layers are had there."""
    here = repository_prefix(uri)
    return RegistrySource(web, uri, (*named, SourcePrefix(here.scheme, here.authority, ())), held)
