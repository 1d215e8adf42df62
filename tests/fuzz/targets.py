"""All targets, by name."""

from __future__ import annotations

from tests.fuzz import adapter_files, answers, backups, etcd_values, local_files, requests, sequences, source_answers

TARGETS = {
    one.name: one
    for group in (etcd_values, adapter_files, requests, sequences, answers, local_files, backups, source_answers)
    for one in group.TARGETS
}
