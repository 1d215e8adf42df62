"""All targets, by name."""

from __future__ import annotations

from tests.fuzz import (
    adapter_files,
    answers,
    backups,
    certificate_names,
    etcd_values,
    local_files,
    requests,
    sequences,
    source_answers,
)

_GROUPS = (
    *(etcd_values, adapter_files, requests, sequences, certificate_names),
    *(answers, source_answers, local_files, backups),
)
TARGETS = {one.name: one for group in _GROUPS for one in group.TARGETS}
