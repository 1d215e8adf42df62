"""A short run of `loraplane` imports what it needs, and no more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from registry.cli.command_tree import ENTRIES, LazyCommand
from registry.v1 import registry_pb2 as pb
from tests.support.fake_admin import FakeAdmin, applied, served

HEAVY = {"grpc", "google.protobuf", "pydantic", "yaml", "httpx", "numpy", "obstore", "cryptography", "structlog"}
RUN = """
import sys
from registry.cli.main import run
try:
    code = run(sys.argv[1:])
except SystemExit:
    code = 0
print(*sorted(sys.modules), file=sys.stderr)
sys.exit(code)
"""
# A completion says nothing when its second is over, and a loaded machine takes longer to connect.
PATIENT = "from registry.cli import completion; completion.SECONDS = 120.0"


def imported(*arguments: str, before: str = "", **variables: str) -> set[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LORAPLANE_")} | variables
    command = [sys.executable, "-c", before + RUN, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return set(ran.stderr.split())


@pytest.mark.parametrize(("option", "allowed"), [("--version", set()), ("--help", {"rich"})])
def test_a_version_and_a_help_import_nothing_heavy(option, allowed):
    """The help is drawn by rich, in the frames that people know."""
    assert imported(option) & (HEAVY | {"rich"}) == allowed


@pytest.mark.parametrize("form", ["table", "wide", "json", "name"])
def test_a_get_imports_grpc_and_nothing_else_that_is_heavy(form):
    admin = FakeAdmin()
    admin.answers["ListPools"] = [pb.ListPoolsResponse(pools=[pb.Pool(name="dev")])]
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[pb.Adapter(name="a", pool="dev")])]
    admin.answers["WatchResidency"] = [[pb.WatchResidencyResponse(snapshot=True)]]
    with served(admin) as address:
        modules = imported("--admin", address, "-o", form, "get", "adapters")
    assert modules & (HEAVY | {"rich"}) == {"grpc", "google.protobuf"}


def test_an_apply_whose_files_are_elsewhere_imports_nothing_that_reads_adapters(tmp_path):
    """Of its time most would be that of imports."""
    manifest = tmp_path / "a.yaml"
    pinned = f'source: {{uri: "s3://b/a", digest: "sha256:{"5" * 64}"}}'
    head = "apiVersion: loraplane/v1\nkind: Adapter\nmetadata: {name: a, pool: dev}\n"
    manifest.write_text(f"{head}spec: {{{pinned}}}\n")
    admin = FakeAdmin()
    admin.answers["ApplyAdapters"] = [applied]
    with served(admin) as address:
        modules = imported("--admin", address, "apply", "-f", str(manifest))
    assert modules & (HEAVY | {"rich"}) == {"grpc", "google.protobuf", "pydantic", "yaml"}
    assert not modules & {"registry.cli.source_reader", "registry.lora.check", "registry.sources.allowed"}


def test_a_tab_imports_grpc_and_nothing_else_that_is_heavy():
    """Somebody waits with a finger on the key."""
    admin = FakeAdmin()
    admin.answers["ListAdapters"] = [pb.ListAdaptersResponse(adapters=[pb.Adapter(name="a", pool="dev")])]
    line = {"_LORAPLANE_COMPLETE": "complete_bash", "COMP_WORDS": "loraplane get adapters a", "COMP_CWORD": "3"}
    with served(admin) as address:
        modules = imported(before=PATIENT, LORAPLANE_ADMIN=address, **line)
    assert modules & (HEAVY | {"rich"}) == {"grpc", "google.protobuf"}
    assert admin.asked("ListAdapters")[0].filter == "name=a*"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_help_in_the_list_is_that_of_the_command(entry):
    loaded = LazyCommand(entry).load()
    assert loaded.name == entry.name
    assert " ".join(loaded.help.split("\n\n")[0].split()) == entry.about
