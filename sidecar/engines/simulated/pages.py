"""The bodies of a simulated engine's replies, as vLLM 0.32 writes them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence

from sidecar.engines.simulated.engine import Card, Rejection, SimulatedVllm, Token


def error_body(rejection: Rejection, *, is_flat: bool = False) -> dict[str, object]:
    """The body of an error reply; `is_flat`: as before 0.10.1."""
    error = {"message": rejection.message, "type": rejection.kind, "param": rejection.param, "code": rejection.status}
    return {"object": "error", **error} if is_flat else {"error": error}


def models(engine: SimulatedVllm, adapters: Iterable[Card] | None = None) -> dict[str, object]:
    """/v1/models: the base model, then each adapter with its path as `root`; `adapters` None: all of them."""
    base = engine.options.served_model_name
    cards = [_card(base, engine.options.model, None)]
    cards += [_card(card.name, card.path, base) for card in (engine.cards.values() if adapters is None else adapters)]
    return {"object": "list", "data": cards}


def _card(name: str, root: str, parent: str | None) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": None if parent else 512,
        "permission": [],
    }


def version(engine: SimulatedVllm) -> dict[str, str]:
    """/version."""
    return {"version": engine.options.version}


def metrics(engine: SimulatedVllm) -> str:
    """/metrics, the part of it that a control plane reads."""
    labels = f'engine="0",model_name="{engine.options.served_model_name}"'
    queries = engine.prompt_tokens if engine.options.kv_connectors else 0
    lines = [
        "# TYPE process_start_time_seconds gauge",
        f"process_start_time_seconds {engine.started_at!r}",
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{{{labels}}} {float(len(engine.running))}",
        "# TYPE vllm:num_requests_waiting gauge",
        f"vllm:num_requests_waiting{{{labels}}} {float(len(engine.waiting))}",
        "# TYPE vllm:request_success_total counter",
        f'vllm:request_success_total{{{labels},finished_reason="length"}} {float(engine.ended)}',
        "# TYPE vllm:prompt_tokens_total counter",
        f"vllm:prompt_tokens_total{{{labels}}} {float(engine.prompt_tokens)}",
        "# TYPE vllm:generation_tokens_total counter",
        f"vllm:generation_tokens_total{{{labels}}} {float(engine.tokens)}",
        f'vllm:engine_sleep_state{{{labels},sleep_state="awake"}} {float(not engine.sleeps)}',
        "# TYPE vllm:external_prefix_cache_queries counter",
        f"vllm:external_prefix_cache_queries_total{{{labels}}} {float(queries)}",
        "# TYPE vllm:lora_requests_info gauge",
    ]
    for (running, waiting), at in engine.samples.items():
        who = f'running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
        lines.append(f'vllm:lora_requests_info{{max_lora="{engine.options.max_loras}",{who}}} {at!r}')
    return "\n".join([*lines, ""])


def completion(model: str, tokens: Sequence[Token], logprobs: int | None, *, as_ids: bool) -> dict[str, object]:
    """/v1/completions. With `as_ids` tokens are written by their numbers."""
    letters = [f"token_id:{token.number}" if as_ids else chr(token.number) for token in tokens]
    choice = {
        "index": 0,
        "text": "".join(chr(token.number) for token in tokens),
        "logprobs": None if logprobs is None else _logprobs(letters, tokens),
        "finish_reason": "length",
        "stop_reason": None,
    }
    return {
        "id": f"cmpl-{uuid.uuid4().hex[:16]}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": {"completion_tokens": len(tokens)},
    }


def _logprobs(letters: Sequence[str], tokens: Sequence[Token]) -> dict[str, object]:
    values = [token.logprob for token in tokens]
    top = [{letter: value} for letter, value in zip(letters, values, strict=True)]
    return {"tokens": letters, "token_logprobs": values, "top_logprobs": top, "text_offset": [*range(len(letters))]}
