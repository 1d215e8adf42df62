"""SGLang's part of the contract. Pure.

Read in sgl-project/sglang:

- ``python/sglang/srt/entrypoints/http_server.py``: a load or unload that fails is 400; the body is ``{success,
  error_message, loaded_adapters}`` either way; /v1/models lists adapters with ``root`` and ``parent``. Releases whose
  /v1/models does not are refused.
- ``python/sglang/srt/managers/tokenizer_control_mixin.py`` at 00a2ca2e: an unload forgets the name, waits for all
  requests that use it, and only then drops the weights. Each load makes a new id. More than ``max_loaded_loras`` make
  the least recently used go.
- ``tokenizer_manager.py``: a request that names an adapter which was unloaded makes SGLang load it again from where it
  was. It is unloaded again at the next look, and cannot be loaded once its files are gone.
- ``python/sglang/srt/lora/lora.py`` of 0.5.9: the scale of all modules is ``lora_alpha / r``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from sidecar.engines.driver import EngineUnreachable, EngineUnusable
from sidecar.engines.observed import Done, EngineLimits, Outcome, Refused, Unknown, UnreadScale
from sidecar.engines.others.http_engine import EnginePages, EngineRequests, HttpContract, HttpEngine, Statistics
from sidecar.engines.transport import MetricLines, Reply, fields_of
from sidecar.engines.vllm.responses import MAX_MESSAGE_LENGTH, not_an_engine, read_listing, read_number

KIND = "sglang"
_RUNNING = re.compile(r"^sglang:num_running_reqs\{.*\} ([0-9.eE+-]+)$", re.MULTILINE)
_WAITING = re.compile(r"^sglang:num_queue_reqs\{.*\} ([0-9.eE+-]+)$", re.MULTILINE)
_UNREAD = (
    "SGLang takes lora_alpha / r and ignores rank_pattern, alpha_pattern and use_rslora: serve it by vLLM, or train "
    "it without them"
)
_LINES = MetricLines((b"sglang:num_running_reqs{", b"sglang:num_queue_reqs{"))


def read_requests(text: str, url: str) -> EngineRequests:
    """Reads /metrics.

    Raises:
        EngineUnreachable: they do not say which requests there are.
    """
    running, waiting = _RUNNING.findall(text), _WAITING.findall(text)
    if not running or not waiting:
        raise EngineUnreachable(f"{url} keeps no statistics of requests: start SGLang with --enable-metrics")
    return EngineRequests(_sum(waiting, url), _sum(running, url))


def read(bodies: Sequence[bytes], _ours: Mapping[str, str], url: str) -> EnginePages:
    """Reads its pages; see `HttpContract`. It lists paths."""
    about, cards = bodies
    facts = fields_of(about)
    version = facts.get("version")
    if not isinstance(version, str):
        raise not_an_engine(url, "its /get_server_info has no version", KIND)
    if facts.get("enable_lora") is not True:
        raise EngineUnusable("lora_disabled", f"{url} serves no adapters: start SGLang with --enable-lora")
    if b'"parent"' not in cards:
        message = f"{url} is SGLang {version[:64]!r}, whose /v1/models lists no adapters; upgrade it"
        raise EngineUnusable("engine_unsupported", message)
    listing = read_listing(cards)
    limits = EngineLimits(
        max_cpu_loras=_number(facts, "max_loaded_loras"), max_lora_rank=_number(facts, "max_lora_rank")
    )
    return EnginePages(version, listing.base_models, listing.adapters, limits)


def outcome(reply: Reply) -> Outcome:
    """Outcome of a call. An unknown name is not told from other refusals of an unload: a listing tells."""
    fields = fields_of(reply.body)
    message = " ".join(str(fields.get("error_message") or "no text").split())[:MAX_MESSAGE_LENGTH]
    match reply.status, fields.get("success"):
        case 200, True:
            return Done()
        case 400, False:
            return Refused(message)
        case status, _:
            return Unknown(f"HTTP {status}: {message}")


def _sum(counts: Sequence[str], url: str) -> int:
    return sum(int(read_number(count, url)) for count in counts)


def _loaded(body: bytes) -> Mapping[str, object]:
    loaded = fields_of(body).get("loaded_adapters")
    return loaded if isinstance(loaded, dict) else {}


def _number(facts: Mapping[str, object], name: str) -> int | None:
    value = facts.get(name)
    return value if isinstance(value, int) and value > 0 else None


CONTRACT = HttpContract(
    KIND,
    ("/get_server_info", "/v1/models"),
    "/load_lora_adapter",
    "/unload_lora_adapter",
    read,
    outcome,
    loaded=_loaded,
    swap="pipelined",
    statistics=Statistics("/metrics", _LINES, read_requests),
    unread_scales=(UnreadScale("patterns", _UNREAD), UnreadScale("rslora", _UNREAD)),
)
make_engine = partial(HttpEngine, CONTRACT)
