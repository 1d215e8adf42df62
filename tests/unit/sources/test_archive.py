"""Adapters in tar archives, among them those that try to do harm."""

from __future__ import annotations

import gzip
import io
import tarfile
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.sources.archive import MAX_BUNDLES, bundle_in_archive, receive_archive
from registry.sources.base import BUNDLE_BYTES, ArtifactError
from tests.unit.sources.conftest import refused

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FILES = {CONFIG: b"{}", WEIGHTS: b"w" * 5000}


def member(name: str, content: bytes = b"x", **changes: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in changes.items():
        setattr(info, key, value)
    return info, content


def archive(*members: tuple[tarfile.TarInfo, bytes], kind: int = tarfile.PAX_FORMAT) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=kind) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return written.getvalue()


def both(folder: str = "") -> list[tuple[tarfile.TarInfo, bytes]]:
    return [member(folder + name, content) for name, content in FILES.items()]


def received(
    content: bytes, *, is_gzipped: bool = False, chunk: int = 700, max_bytes: int = 1 << 20
) -> dict[str, bytes]:
    got: dict[str, bytes] = {}

    def receive(name: str, size_bytes: int, chunks: Iterator[bytes]) -> None:
        assert name not in got
        got[name] = b"".join(chunks)
        assert len(got[name]) == size_bytes

    chunks = (content[start : start + chunk] for start in range(0, len(content), chunk))
    receive_archive(chunks, receive, is_gzipped=is_gzipped, max_bytes=max_bytes)
    return got


def refusal(content: bytes, **options: object) -> ArtifactError:
    return refused(received, content, **options)


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("folder", ["", "./", "sql/", "./sql/", "v" * 60 + "/"])
def test_an_archive_with_at_most_one_top_directory_is_read(folder, kind):
    others = [member("README.md"), member("sql", b"", type=tarfile.DIRTYPE), member("link", b"", type=tarfile.SYMTYPE)]
    assert received(archive(*others, *both(folder), kind=kind)) == FILES


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_long_name_is_read_from_its_extension(kind):
    assert received(archive(*both("d" * 150 + "/"), kind=kind)) == FILES


@pytest.mark.parametrize("split", [0, 100])
def test_a_gzipped_archive_is_read_also_in_several_streams(split):
    content = archive(*both())
    packed = gzip.compress(content[:split]) + gzip.compress(content[split:])
    assert received(packed, is_gzipped=True, chunk=64) == FILES


def test_the_first_of_two_counts_and_both_come_from_one_directory():
    decoys = [member(f"b/{name}", b"other") for name in FILES]
    assert received(archive(*both("a/")[:1], *decoys, *both("a/"), *decoys)) == FILES


@pytest.mark.parametrize(
    "bad",
    [
        member(f"/{CONFIG}"),
        member("/etc/passwd"),
        member(f"../{CONFIG}"),
        member(f"a/../../{CONFIG}"),
        member(CONFIG, b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member(CONFIG, b"", type=tarfile.LNKTYPE, linkname="x"),
        member(CONFIG, b"", type=tarfile.CHRTYPE),
        member(CONFIG, b"", type=tarfile.FIFOTYPE),
        member(CONFIG, b"", type=tarfile.DIRTYPE),
        member("x", pax_headers={"GNU.sparse.major": "1"}),
        member("x", type=tarfile.GNUTYPE_SPARSE),
        member("x", pax_headers={"size": "-1"}),
        member("x", pax_headers={"size": "9" * 30}),
        member("x", pax_headers={"path": f"../../{CONFIG}"}),
        member("x", pax_headers={"comment": "y" * (1 << 17)}),
        member("x", b"garbage", type=tarfile.XHDTYPE),
    ],
    ids=lambda one: f"{one[0].name}-{one[0].type}-{list(one[0].pax_headers)}",
)
def test_an_archive_that_would_do_harm_is_refused(bad):
    """Fail closed: absolute names, dots, links, devices, sparse files and lies in extended headers."""
    error = refusal(archive(bad, *both()))
    assert (error.reason, error.permanent) == ("bad_archive", True)


@pytest.mark.parametrize(
    "records", [b"6 a=b\n" * 10_000, b"6 a=b\n7", b"6 a=b\n 6 a=b\n", b"0 a=b\n", b"123456789 a=b\n"]
)
def test_extended_headers_without_end_are_refused_soon(records):
    """R16 bounded: an archive of a megabyte must not cost minutes of processor time."""
    started = time.process_time()
    bad = [member("x", records, type=tarfile.XHDTYPE)] * 150
    error = refusal(archive(*bad, *both()), chunk=1 << 16, max_bytes=1 << 30)
    assert (error.reason, error.permanent) == ("bad_archive", True)
    assert time.process_time() - started < 10


@pytest.mark.parametrize("content", [b"\0" * 511 + b"x", b"<html>" * 200, b"PK\3\4" + bytes(600)])
def test_what_is_no_archive_is_refused(content):
    assert refusal(content).reason == "bad_archive"
    assert refusal(content, is_gzipped=True).reason == "bad_archive"


def test_a_negative_size_in_binary_is_refused():
    info, _ = member(CONFIG)
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = b"\xff" * 12
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    assert refusal(bytes(block) + bytes(2048)).reason == "bad_archive"


@pytest.mark.parametrize("kept", [0, 100, 512, 700, 2000, 5000])
def test_an_archive_that_ends_too_early_may_still_be_being_written(kept):
    error = refusal(archive(*both())[:kept])
    assert (error.reason, error.permanent) == ("source_incomplete", False)
    packed = gzip.compress(archive(*both()), 0)
    assert refusal(packed[:kept], is_gzipped=True).reason == "source_incomplete"


def test_a_member_that_is_too_large_is_refused_before_any_of_it_is_read():
    """R16 bounded: its header says how large it is; nothing of it is written first."""
    info, _ = member(WEIGHTS)
    info.size = 1 << 40
    head = info.tobuf(tarfile.PAX_FORMAT)
    drawn = list[int]()

    def source() -> Iterator[bytes]:
        for number in range(1000):
            drawn.append(number)
            yield head if not number else b"w" * 512

    with pytest.raises(ArtifactError) as refused:
        receive_archive(source(), lambda *_: [*_[2]], is_gzipped=False, max_bytes=len(head) + 100 * 512)
    assert refused.value.reason == "too_large"
    assert len(drawn) <= 2


def test_a_gzip_bomb_is_refused_in_little_memory():
    """Fault 26, R16 bounded: what is unpacked is counted, and is never in memory as a whole."""
    bomb = gzip.compress(archive(member("zeros", bytes(64 << 20))))
    tracemalloc.start()
    try:
        error = refusal(bomb, is_gzipped=True, chunk=1 << 16, max_bytes=32 << 20)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (error.reason, error.permanent) == ("too_large", True)
    assert peak_bytes < 8 << 20


@settings(deadline=None)
@given(st.binary(max_size=3000), st.integers(0, 3000), st.booleans())
def test_whatever_bytes_arrive_the_answer_is_typed(noise, at, is_gzipped):
    """Fail closed: damaged in any place, an archive is refused or gives two files."""
    content = bytearray(archive(*both("a/")))
    content[at : at + len(noise)] = noise
    try:
        got = received(gzip.compress(bytes(content), 1) if is_gzipped else bytes(content), is_gzipped=is_gzipped)
    except ArtifactError:
        return
    assert set(got) == set(FILES)


def extension(size_bytes: int, kind: bytes = tarfile.XGLTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return member("x", b"x" * size_bytes, type=kind)


@pytest.mark.parametrize("kind", [tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK])
@pytest.mark.parametrize(
    ("sizes", "is_read"),
    [([1 << 16], True), ([(1 << 16) + 1], False), ([1 << 16] * 32, True), ([1 << 16] * 32 + [1], False)],
    ids=["one", "one too large", "all", "one too many"],
)
def test_extended_headers_have_64_kib_each_and_2_mib_together(sizes, is_read, kind):
    """R16 bounded, docs/sources.md: those of no use are passed over."""
    content = archive(*(extension(size, kind) for size in sizes), *both())
    if is_read:
        assert received(content, max_bytes=1 << 30, chunk=1 << 16) == FILES
    else:
        assert refusal(content, max_bytes=1 << 30, chunk=1 << 16).reason == "bad_archive"


def test_as_many_members_as_may_be_are_read(monkeypatch):
    """R16 bounded."""
    monkeypatch.setattr("registry.sources.archive.MAX_HEADERS", 5)
    others = [member(f"n{number}") for number in range(4)]
    assert received(archive(*others[:3], *both())) == FILES
    assert refusal(archive(*others, *both())).reason == "bad_archive"


@pytest.mark.parametrize("chunk", [1, 512, 700])
def test_an_archive_may_have_as_many_bytes_as_are_taken_and_not_one_more(chunk):
    """R16 bounded: nothing is read behind the second file."""
    content = archive(*both())[: 512 + 512 + 512 + 5120]
    assert received(content, chunk=chunk, max_bytes=len(content)) == FILES
    error = refusal(content, chunk=chunk, max_bytes=len(content) - 1)
    assert (error.reason, error.permanent) == ("too_large", True)


@pytest.mark.parametrize(
    ("record", "is_read"),
    [
        (b"00000013 a=b\n", True),
        (b"00000014 a=b\n", False),
        (b"000000014 a=b\n", False),
        (b"6 a=b\n", True),
        (b"5 a=\n", True),
        (b"5 a=b\n", False),
        (b"7 a=b\n", False),
        (b"6 ab \n", False),
        (b"-6 a=b\n", False),
        (b" a=b\n", False),
    ],
)
def test_an_extended_header_is_read_only_if_each_record_is_as_long_as_it_says(record, is_read):
    """Fail closed."""
    content = archive(member("x", record, type=tarfile.XHDTYPE), *both())
    if is_read:
        assert received(content) == FILES
    else:
        assert refusal(content).reason == "bad_archive"


@pytest.mark.parametrize(
    ("size", "reason"),
    [("9" * 15, "too_large"), ("9" * 16, "bad_archive"), ("\u0663", "bad_archive"), ("", "bad_archive")],
)
def test_a_size_in_an_extended_header_is_a_number_of_at_most_15_digits(size, reason):
    assert refusal(archive(member("x", pax_headers={"size": size}), *both())).reason == reason


def test_a_size_in_an_extended_header_is_the_size():
    """And holds for one member: the next has its own again."""
    weights, content = member(WEIGHTS, FILES[WEIGHTS])
    head = member("x", b"13 size=5000\n", type=tarfile.XHDTYPE)
    weights.size = 0
    packed = archive(head, both()[1])
    assert received(archive(*both()[:1]).rstrip(b"\0").ljust(1024, b"\0") + packed) == FILES
    assert content == FILES[WEIGHTS]


def test_only_what_has_content_is_followed_by_some():
    """Links, devices and directories say a size at times; what nobody knows is passed over with its content."""
    raw = b""
    for kind, content in ((tarfile.SYMTYPE, b""), (tarfile.DIRTYPE, b""), (b"Z", b"z" * 700), (tarfile.CONTTYPE, b"c")):
        info, _ = member("other", type=kind)
        info.size = 700 if len(content) != 1 else 1
        raw += info.tobuf(tarfile.USTAR_FORMAT) + content.ljust(-(-len(content) // 512) * 512, b"\0")
    assert received(raw + archive(*both())) == FILES


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt"])
def test_weights_that_may_hold_code_are_named_only_where_no_others_are(name):
    """Fail closed: also where they are no regular files, whatever lies beside them."""
    error = refusal(archive(both()[0], member(name), member("README.md")))
    assert (error.reason, error.permanent) == ("weights_not_safetensors", True)
    assert name in error.message
    assert received(archive(member(name), *both())) == FILES
    assert refusal(archive(both()[1], member(name))).reason == "source_incomplete"
    assert refusal(archive(member(name, b"", type=tarfile.SYMTYPE), *both())).reason == "bad_archive"
    assert refusal(archive(both()[0], member(f"a/{name}"))).reason == "weights_not_safetensors"


def test_what_lies_deeper_or_in_another_directory_is_none_of_the_adapter():
    deep = [member(f"a/b/{name}", b"other") for name in FILES]
    assert received(archive(*deep, *both("a/"))) == FILES
    assert refusal(archive(*both("a/")[:1], *both("b/")[1:])).reason == "source_incomplete"
    assert refusal(archive(*both("a/")[:1], *both()[1:])).reason == "source_incomplete"
    assert received(archive(member(".", b"", type=tarfile.DIRTYPE), *both("./a/./"))) == FILES


def test_what_follows_the_two_files_is_not_read():
    """R8: an archive may go on for ever."""
    content = archive(*both())

    def chunks() -> Iterator[bytes]:
        yield content[: 3 * 512 + 5120]
        raise AssertionError("it was asked for more")

    got: list[str] = []
    receive_archive(
        chunks(), lambda name, _size, chunks: got.append(name + str(len(b"".join(chunks)))), is_gzipped=False
    )
    assert got == [f"{CONFIG}2", f"{WEIGHTS}5000"]


def bundle_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes | None:
    content = archive(*members)
    return bundle_in_archive((content[at : at + 700] for at in range(0, len(content), 700)), is_gzipped=False)


def test_an_archive_has_a_bundle_before_or_behind_its_files_and_none_of_another_folder():
    large = b" " * (BUNDLE_BYTES + 5)
    for place in ("", "a/"):
        bundle = member(f"{place}model.sig", b"its")
        assert bundle_of(bundle, *both(place)) == bundle_of(*both(place), bundle) == b"its"
    for members, bundle in (
        (both(), None),
        ([member("other/model.sig", b"its"), *both("a/")], None),
        ([member("model.sig", b"its")], b"its"),
        ([member("model.sig", large), *both()], large[:BUNDLE_BYTES]),
        ([member("model.sig", b"its"), member("model.sig", b"{}"), *both()], b"its"),
    ):
        assert bundle_of(*members) == bundle


def test_bundles_that_would_fill_the_memory_or_lead_elsewhere_are_refused():
    """X2 unbreakable: whoever may publish an archive chooses its members."""
    many = [member(f"{at}/model.sig", b"its") for at in range(MAX_BUNDLES + 1)]
    link = member("model.sig", b"", type=tarfile.SYMTYPE, linkname="/etc/hostname")
    for members in (many, [link]):
        assert refused(bundle_of, *members, *both()).reason == "bad_archive"
