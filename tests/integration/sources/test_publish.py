"""`loraplane publish` without torch: what is put where, and that nothing is ever replaced."""

from __future__ import annotations

import json
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from registry.cli.main import run
from registry.lora.digest import FILES
from registry.lora.directory import digest_of
from tests.corpus.drafts import LLAMA, Draft
from tests.integration.sources.conftest import ref, refusal

BUCKET = "acme-published"  # of its own: moto keeps what other modules made
URI = f"s3://{BUCKET}/sql/v1"


@pytest.fixture
def base(tmp_path) -> Path:
    return LLAMA.write_base(tmp_path / "base")


@pytest.fixture
def folder(tmp_path) -> Path:
    return LLAMA.draft().write(tmp_path / "trained")


@pytest.fixture
def publish(base, capsys):
    """Publishes; gives the exit code, standard output and standard error."""

    def call(source: Path, target: object, *more: str, form: str = "json") -> tuple[int, str, str]:
        code = run(["-o", form, "publish", str(source), str(target), "--base-model", str(base), *more])
        captured = capsys.readouterr()
        return int(code), captured.out, captured.err

    return call


def other() -> Draft:
    return LLAMA.draft(seed=1)


def test_plain_lora_is_put_there_as_it_is(publish, folder, tmp_path):
    """R4: the digest that is printed last is that of both, and is what is pinned."""
    code, out, _ = publish(folder, tmp_path / "deep" / "out", form="table")
    assert (code, out.splitlines()[-1]) == (0, digest_of(folder))
    assert {name: (tmp_path / "deep" / "out" / name).read_bytes() for name in FILES} == LLAMA.draft().files()
    code, out, _ = publish(folder, (tmp_path / "by-uri").as_uri())
    assert (code, list(json.loads(out))[-1]) == (0, "digest")
    assert {path.name for path in (tmp_path / "by-uri").iterdir()} == set(FILES)


@pytest.mark.parametrize("more", [("--rank", "2"), ("--dtype", "bfloat16")])
def test_without_torch_there_is_one_error_with_the_remedy(publish, folder, tmp_path, more):
    code, _, err = publish(folder, tmp_path / "out", *more)
    assert (code, json.loads(err)["error"]["reason"]) == (4, "CANNOT_PUBLISH")
    assert "loraplane[publish]" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "target", ["https://h/a/", "hf://org/m@" + "0" * 40, "oci://h/a", "s3://BAD/..", "s3://b/a?x=CANARY", "file://h/a"]
)
def test_where_nothing_can_be_written_is_said(publish, folder, target):
    """X1: and no secret of a URI is repeated."""
    code, _, err = publish(folder, target)
    assert (code, json.loads(err)["error"]["reason"]) == (4, "CANNOT_PUBLISH")
    assert "CANARY" not in err


@pytest.fixture(scope="module")
def moto():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(moto):
    """A client of an S3 server with one empty bucket."""
    client = boto3.Session("x", "x", region_name="us-east-1").client("s3", endpoint_url=moto)
    client.create_bucket(Bucket=BUCKET)
    yield client
    for one in client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        client.delete_object(Bucket=BUCKET, Key=one["Key"])
    client.delete_bucket(Bucket=BUCKET)
    client.close()


def entries(moto: str, folder: Path) -> dict[str, object]:
    """A credential for the bucket, and one that signs nothing."""
    (folder / "secret").write_text('{"access_key_id": "x", "secret_access_key": "secretCANARY"}')
    place = {"prefixes": [f"s3://{BUCKET}"], "store": {"endpoint": moto}}
    return {"acme": place | {"kind": "file", "path": str(folder / "secret")}, "public": place | {"kind": "none"}}


@pytest.fixture
def mine(moto, tmp_path) -> tuple[str, ...]:
    """Flags with a credential for the bucket."""
    (tmp_path / "credentials").write_text(json.dumps(entries(moto, tmp_path)))
    return ("--credentials", str(tmp_path / "credentials"), "--credential", "acme")


def content(bucket) -> dict[str, bytes]:
    found = bucket.list_objects_v2(Bucket=BUCKET).get("Contents", [])
    return {one["Key"]: bucket.get_object(Bucket=BUCKET, Key=one["Key"])["Body"].read() for one in found}


async def test_two_objects_are_written_once_and_read_by_a_sidecar(
    publish, folder, bucket, moto, mine, open_store, tmp_path
):
    """W6, R4: and never replaced; who does not sign, or asks for what is not there, gets nothing."""
    code, out, err = publish(folder, URI, *mine)
    assert code == 0, err
    assert content(bucket) == {f"sql/v1/{name}": data for name, data in LLAMA.draft().files().items()}
    assert json.loads(out)["digest"] == digest_of(folder)
    assert publish(folder, URI, *mine)[0] == 0
    assert publish(other().write(tmp_path / "other"), URI, *mine)[0] == 5
    assert content(bucket) == {f"sql/v1/{name}": data for name, data in LLAMA.draft().files().items()}
    store = open_store(f"s3://{BUCKET}", credentials=entries(moto, tmp_path))
    unsigned = await refusal(store, f"{URI}/", "public")
    missing = await refusal(store, f"s3://{BUCKET}/gone/", "acme")
    assert [(one.reason, one.permanent) for one in (unsigned, missing)] == [
        ("source_denied", False),
        ("source_missing", False),
    ]
    assert (await store.ensure(ref(f"{URI}/", "acme"))).digest == digest_of(folder)
