"""The registry for programs: publish an adapter from a training job, and know when every replica serves it.

    from registry.client import Registry

    with Registry("admin:7600") as registry:
        published = registry.publish("/adapters/policy/step-7", "acme/policy", "qwen-prod")
        ...                                  # every replica that should serve it does, by now
        registry.withdraw("acme/policy", "qwen-prod")

`AsyncRegistry` is the same for programs with an event loop. All errors are those of `registry.errors`.
"""

from registry.client.asynchronous import AsyncRegistry
from registry.client.connection import Tls
from registry.client.published import Canaries, Published
from registry.client.residency import AdapterResidency, PoolResidency, Residence, State
from registry.client.synchronous import Registry

__all__ = [
    "AdapterResidency",
    "AsyncRegistry",
    "Canaries",
    "PoolResidency",
    "Published",
    "Registry",
    "Residence",
    "State",
    "Tls",
]
