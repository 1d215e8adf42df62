"""Rules for names of adapters, pools, replicas, tenants and hosts; labels. Pure.

vLLM takes any name at all. An adapter named like a content-part type hijacks the base model's chat
requests, commas corrupt a metric, and a name equal to a base model would shadow it; so the rules are ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from registry.model.errors import InvalidArgument, Reason
from registry.model.source_uri import DEFAULT_PORTS

MAX_NAME_LENGTH = 160
DEFAULT_TENANT = "default"
_SEGMENT = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_SEGMENT_ONLY = re.compile(_SEGMENT, re.ASCII)
# As Kubernetes makes them: no vowels, and nothing that is read as another character.
# A pod's name has 63 characters at most: of a longer one the first 58 stay, and five that are random.
_RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
_OF_DEPLOYMENT = re.compile(rf"(.+)-{_RANDOM}{{8,10}}-{_RANDOM}{{5}}|(?=.{{63}}\Z)(.+)-{_RANDOM}{{6,15}}", re.ASCII)
_ADAPTER = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})?", re.ASCII)
MAX_REQUEST_ID_CHARACTERS = 128
_REQUEST_ID = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_REQUEST_ID_CHARACTERS}}}", re.ASCII)

# Types of content parts, and keys beside them, that vLLM's chat endpoints look up by name.
RESERVED_NAMES = frozenset(
    "text image audio video input file refusal thinking tool document image_url audio_url video_url image_pil "
    "image_embeds audio_embeds prompt_embeds input_text input_image input_audio input_file output_text "
    "tool_use tool_result tool_call tool_reference function_call reasoning summary_text search_result".split()
)

# Sidecars prove weights loadable under such names before they take the place of others.
PROOF_PREFIX = "loraplane-check-"


def check_adapter_name(name: str, *, field: str = "name") -> None:
    """Raises InvalidArgument unless `name` may name an adapter."""
    if len(name) > MAX_NAME_LENGTH or ".." in name or not _ADAPTER.fullmatch(name):
        raise InvalidArgument(
            Reason.INVALID_NAME,
            f"{name[:200]!r} is not an adapter name: use SEGMENT or SEGMENT/SEGMENT of at most {MAX_NAME_LENGTH} "
            "characters, each segment letters, digits and . _ - between a letter or digit at both ends, no '..'",
            field=field,
        )
    if name.lower() in RESERVED_NAMES:
        raise InvalidArgument(
            Reason.RESERVED_NAME,
            f"{name!r} is reserved: vLLM reads it as a type of content; choose another",
            field=field,
        )
    if name.lower().startswith(PROOF_PREFIX):
        raise InvalidArgument(
            Reason.RESERVED_NAME,
            f"{name!r} is reserved: sidecars try weights under names that start with {PROOF_PREFIX}; choose another",
            field=field,
        )


def check_not_base(name: str, base_models: Iterable[str], *, field: str = "name") -> None:
    """Raises InvalidArgument if `name` equals a served base model's name, without regard to case."""
    if name.lower() in {base.lower() for base in base_models}:
        raise InvalidArgument(
            Reason.NAME_IS_BASE_MODEL, f"{name!r} is the name of the pool's base model; choose another", field=field
        )


def check_segment(name: str, *, field: str) -> None:
    """Raises InvalidArgument unless `name` may name a pool, a replica or a tenant."""
    if ".." in name or not _SEGMENT_ONLY.fullmatch(name):
        raise InvalidArgument(
            Reason.INVALID_NAME,
            f"{name[:200]!r} is not a name: use 1 to 96 letters, digits and . _ -, a letter or digit at both ends",
            field=field,
        )


# gRPC metadata of a call that may repeat another one with the same request_id, which may be under way yet: then a
# refusal waits until nothing of that can take effect any more (docs/etcd-layout.md).
REPEATED_METADATA = ("loraplane-repeated", "1")


def check_request_id(request_id: str, *, field: str = "request_id") -> None:
    """Raises InvalidArgument unless `request_id` may identify a request."""
    if not _REQUEST_ID.fullmatch(request_id):
        raise InvalidArgument(
            Reason.INVALID_FIELD, "a request id is 1 to 128 characters of A-Z a-z 0-9 . _ : -", field=field
        )


def tenant_of(name: str) -> str:
    """The tenant that an adapter's name says: the part before "/", lower-cased, else "default"."""
    tenant, slash, _ = name.partition("/")
    return tenant.lower() if slash else DEFAULT_TENANT


def name_key(name: str) -> str:
    """The name as it stands in etcd keys: lower-cased, so that there are no twins, with "/" as "%2F"."""
    return name.lower().replace("/", "%2F")


def name_of_key(key: str) -> str:
    """The lower-cased name that a key stands for; inverse of `name_key` but for case."""
    return key.replace("%2F", "/")


_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"(?:\*|(?:\*\.)?{_LABEL}(?:\.{_LABEL})*)")
_ENGINE_HOST = re.compile(r"(\[[0-9a-f:.]+\](?:/[0-9]{1,3})?|[^\[\]:]+)(?::([0-9]{1,5}))?")
# Of a URL's authority. Whatever else stands there, another reader might take for another host.
_AUTHORITY = re.compile(r"[A-Za-z0-9._-]+(?::[0-9]+)?|\[[0-9A-Fa-f:.]+\](?::[0-9]+)?")


def matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """True for labels among which are all that a selector asks for."""
    return all(labels.get(key) == value for key, value in selector.items())


def label_text(labels: Mapping[str, str]) -> str:
    """Labels as the command line takes them: ``gpu=a10,zone=b``."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def check_engine_host(host: str) -> str:
    """The entry of a pool's ``engine_hosts`` as it is. Raises ValueError: it is none."""
    found = _ENGINE_HOST.fullmatch(host)
    if found is None or (found[2] and not 0 < int(found[2]) < 65536):
        raise ValueError(f"{host[:100]!r} is neither a host nor a network")
    if _network(found[1]) is None and (not _HOST_NAME.fullmatch(found[1]) or found[1].rpartition(".")[2].isdecimal()):
        raise ValueError(f"{host[:100]!r} is neither a host in lower case nor a network")
    return host


def deployment_of(replica: str) -> str:
    """NAME of the Deployment of Kubernetes that gives a pod this name, NAME-68b4f9c9d7-x2x7k, and never again.

    Of a long NAME it is cut: NAME-68b4f9c9d7x2x7k, or with less of the middle. Empty: it is no such name.
    """
    found = _OF_DEPLOYMENT.fullmatch(replica)
    return (found[1] or found[2]) if found is not None else ""


def is_engine_allowed(url: str, hosts: Iterable[str]) -> bool:
    """True if a URL of an engine names one of these hosts and ports.

    ``*.DOMAIN`` is any host below it, ``*`` any at all. A host that is an address is in a network, a name never is,
    wherever it may lead.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError):
        return False
    if not _AUTHORITY.fullmatch(parts.netloc) or any(character <= " " for character in url):
        return False
    return any(_is_of(parts.hostname or "", port, host) for host in hosts)


def _is_of(name: str, port: int, host: str) -> bool:
    found = _ENGINE_HOST.fullmatch(host)
    if found is None or (found[2] and int(found[2]) != port):
        return False
    network = _network(found[1])
    if network is None:
        return found[1] in {"*", name} or (found[1].startswith("*.") and name.endswith(found[1][1:]))
    try:
        return ip_address(name) in network
    except ValueError:
        return False


def _network(text: str) -> IPv4Network | IPv6Network | None:
    """The network that an entry is, an address being one of a single host; None: it is a name."""
    try:
        return ip_network(text.replace("[", "").replace("]", ""), strict=False)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class NamePatterns:
    """Patterns of names, taken apart once.

    Attributes:
        words: the patterns as they are written.
        any_case: names in another case are meant too, as of tenants; two pools may differ in nothing else.
        exact: those without ``*``.
        begin: beginnings of names, of patterns whose only ``*`` ends them.
        parts: of each of the others the beginning, what has to follow in turn, and the end.
    """

    words: tuple[str, ...]
    any_case: bool = False
    exact: frozenset[str] = field(init=False, repr=False, compare=False)
    begin: tuple[str, ...] = field(init=False, repr=False, compare=False)
    parts: tuple[tuple[str, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        split = [tuple((word.lower() if self.any_case else word).split("*")) for word in self.words]
        object.__setattr__(self, "exact", frozenset(one[0] for one in split if one[1:] == ()))
        object.__setattr__(self, "begin", tuple(one[0] for one in split if one[1:] == ("",)))
        object.__setattr__(self, "parts", tuple(one for one in split if one[1:] > ("",)))

    def match(self, name: str) -> bool:
        """True for a name that one stands for."""
        if name.startswith(self.begin) or name in self.exact:
            return True
        if self.any_case and (lower := name.lower()) != name:
            return self.match(lower)
        # Most have none, and a generator that yields nothing takes as long as all of the above.
        return bool(self.parts) and any(_fits(one, name) for one in self.parts)


def _fits(pattern: tuple[str, ...], name: str) -> bool:
    """True for a name of these parts.

    Callers choose names, and are asked about before these are checked, so each part is looked for once, from where the
    one before it ends. A regular expression would try all ways to share a long name out among several stars.
    """
    first, *middle, last = pattern
    at, end = len(first), len(name) - len(last)
    if at > end or not name.startswith(first) or not name.endswith(last):
        return False
    for part in middle:
        at = name.find(part, at, end) + len(part)
        if at < len(part):
            return False
    return True
