"""What tests of adapters share: the verdict on one that is not written down."""

from __future__ import annotations

import json
from typing import Any

from registry.lora.base import BaseModules
from registry.lora.check import AdapterVerdict, examine
from registry.lora.config import read_config
from registry.lora.policy import AdapterLimits, policy_of
from registry.lora.safetensors import Tensor
from tests.corpus.drafts import Draft

NO_LIMITS = AdapterLimits()


def tensors_of(draft: Draft) -> list[Tensor]:
    return [Tensor(name, one.dtype, one.shape, 0, len(one.data)) for name, one in draft.tensors.items()]


def verdict_of(
    draft: Draft, base: BaseModules | None = None, limits: AdapterLimits = NO_LIMITS, **policy: Any
) -> AdapterVerdict:
    config = read_config(json.dumps(draft.config).encode())
    return examine(config, tensors_of(draft), base, limits, policy_of(policy))
