"""The real Envoy before engines: its configuration with an endpoint picker, and its process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.processes import child

ROOT = Path(__file__).parents[2]
ENVOY = ROOT / ".venv-envoy/lib/python3.11/site-packages/envoy/_bin/envoy"
_TYPES = "type.googleapis.com/envoy.extensions"


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


_PREVIOUS = f"{_TYPES}.retry.host.previous_hosts.v3.PreviousHostsPredicate"
# As docs/picker.md and compose/envoy/envoy.yaml have them.
_RETRIES = {
    "retry_on": "connect-failure,refused-stream,reset-before-request,unavailable",
    "num_retries": 3,
    "retry_host_predicate": [
        {"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": {"@type": _PREVIOUS}}
    ],
    "host_selection_retry_max_attempts": 3,
}
_LOGGED = "%START_TIME% %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %UPSTREAM_HOST%\n"


def _log_of_failures() -> dict[str, Any]:
    """A log of answers from 500 on, on standard output: whose failure it was, and why."""
    comparison = {"op": "GE", "value": {"default_value": 500, "runtime_key": "log_from"}}
    return {
        "name": "log",
        "filter": {"status_code_filter": {"comparison": comparison}},
        "typed_config": {
            "@type": f"{_TYPES}.access_loggers.stream.v3.StdoutAccessLog",
            "log_format": {"text_format_source": {"inline_string": _LOGGED}},
        },
    }


def _http_options(**options: Any) -> dict[str, Any]:
    kind = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {kind: {"@type": f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions", **options}}


def _ext_proc(mode: str, *, is_counted: bool) -> dict[str, Any]:
    return {
        "name": "picker",
        "typed_config": {
            "@type": f"{_TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "600s", "retry_policy": _RETRIES},
            "processing_mode": {
                "request_header_mode": "SEND",
                "request_body_mode": mode,
                "request_trailer_mode": "SEND" if mode == "FULL_DUPLEX_STREAMED" else "SKIP",
                "response_header_mode": "SKIP",
                "response_body_mode": "NONE",
                "response_trailer_mode": "SEND" if is_counted else "SKIP",
            },
            "message_timeout": "10s",
            "allow_mode_override": False,
        },
    }


def configuration(
    port: int, admin_port: int, pickers: Sequence[int], mode: str = "BUFFERED", *, is_counted: bool = True
) -> dict[str, Any]:
    """An Envoy on a port that asks these pickers, and sends each request where they say.

    `is_counted`: the picker also hears of the heads of answers.
    """
    router = {"name": "router", "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"}}
    routes = [{"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "600s"}}]
    manager = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "access_log": [_log_of_failures()],
        "http_filters": [_ext_proc(mode, is_counted=is_counted), router],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
    }
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    http1 = _http_options(
        common_http_protocol_options={"idle_timeout": "3s"}, explicit_http_config={"http_protocol_options": {}}
    )
    http2 = _http_options(explicit_http_config={"http2_protocol_options": {}})
    engines = {
        "name": "engines",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "5s",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": "x-gateway-destination-endpoint"},
        "typed_extension_protocol_options": http1,
    }
    picker = {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": http2,
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "0.2s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "no_traffic_interval": "0.2s",
                "grpc_health_check": {},
            }
        ],
        "load_assignment": {
            "cluster_name": "picker",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(one)}} for one in pickers]}],
        },
    }
    return {
        "admin": {"address": _address(admin_port)},
        "static_resources": {
            "listeners": [{"name": "in", "address": _address(port), "filter_chains": [chain]}],
            "clusters": [engines, picker],
        },
    }


@contextmanager
def envoy(folder: Path, config: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """Envoy as a process, which ends with the context."""
    file, log = folder / "envoy.json", folder / "envoy.log"
    file.write_text(json.dumps(config))
    command = [str(ENVOY), "-c", str(file), "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
    with log.open("ab") as output, child(command, stdout=output, stderr=output) as process:
        yield process
