"""Which names there may be, and what patterns of them stand for."""

from __future__ import annotations

import time

import pytest

from registry.model.errors import InvalidArgument, Reason
from registry.model.names import (
    RESERVED_NAMES,
    NamePatterns,
    check_adapter_name,
    check_engine_host,
    check_not_base,
    check_request_id,
    check_segment,
    deployment_of,
    is_engine_allowed,
    name_key,
    name_of_key,
)


@pytest.mark.parametrize("name", ["a", "A", "a1", "acme/sql", "acme/sql-v1.2_x", "a" * 96, "a" * 63 + "/" + "b" * 96])
def test_good_names(name):
    check_adapter_name(name)
    assert name_of_key(name_key(name)) == name.lower()


BAD = "/ a/ /a a/b/c a,b a..b .a a. -a a- ä a%2Fb ../x".split()
TOO_LONG = ("a" * 97, "a" * 96 + "/" + "b" * 96, "a" * 64 + "/" + "b" * 96)


@pytest.mark.parametrize("name", ["", "a b", "a\n", "a\0", *BAD, *TOO_LONG])
def test_bad_names(name):
    with pytest.raises(InvalidArgument) as told:
        check_adapter_name(name, field="f")
    assert (told.value.reason, told.value.field) == (Reason.INVALID_NAME, "f")


@pytest.mark.parametrize(
    "name", sorted(RESERVED_NAMES | {"IMAGE_URL", "Text", "LoraPlane-check-1", "loraplane-check-a/b"})
)
def test_reserved_names(name):
    """R4: nothing stands in for what a sidecar proves loadable."""
    with pytest.raises(InvalidArgument):
        check_adapter_name(name)


def test_base_models():
    """R5 no-silent-base: an adapter is not named like the base, without regard to case."""
    check_not_base("a", ["b"])
    with pytest.raises(InvalidArgument) as told:
        check_not_base("Qwen", ["x", "qwen"])
    assert told.value.reason is Reason.NAME_IS_BASE_MODEL


@pytest.mark.parametrize("name", ["", "a/b", "a..b", "_", "a ", "a" * 97])
def test_bad_segments(name):
    check_segment("a.B-1_x", field="f")
    with pytest.raises(InvalidArgument):
        check_segment(name, field="f")


@pytest.mark.parametrize("request_id", ["", "a b", "a/b", "ä", "a" * 129, "a\n"])
def test_bad_request_ids(request_id):
    check_request_id("0Az._:-")
    check_request_id("a" * 128)
    with pytest.raises(InvalidArgument) as told:
        check_request_id(request_id)
    assert (told.value.reason, told.value.field) == (Reason.INVALID_FIELD, "request_id")


HOSTS = (
    "* *.engines.svc engines vllm-0 vllm_0.a:8000 10.0.0.0/8 10.0.0.1 10.0.0.0/8:8000 [fd00::]/8 [fd00::1]:80".split()
)


@pytest.mark.parametrize("host", [*HOSTS, "a:1", "a:65535", "10.1.2.3/8"])
def test_hosts_of_engines(host):
    assert check_engine_host(host) == host


@pytest.mark.parametrize(
    "host", ["", *"A.svc a..b *a a.* http://a a/b 10.0.0.0/33 10.0.1 a:0 a:65536 a:b fd00::1 [a]".split()]
)
def test_what_is_no_host_of_an_engine(host):
    with pytest.raises(ValueError, match="neither a host"):
        check_engine_host(host)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://10.1.2.3:8000", "10.0.0.0/8"),
        ("http://10.1.2.3:8000/", "10.1.2.3"),
        ("http://10.9.9.9:8000/", "10.1.2.3/8"),
        ("http://10.1.2.3:8000", "10.0.0.0/8:8000"),
        ("http://10.1.2.3", "10.0.0.0/8:80"),
        ("https://VLLM-0.engines.svc/base", "*.engines.svc:443"),
        ("http://vllm-0:8000", "vllm-0"),
        ("http://anything", "*"),
        ("http://[fd00::7]:8000", "[fd00::]/8"),
    ],
)
def test_engines_that_a_pool_allows(url, host):
    assert is_engine_allowed(url, ["other", host])


STRANGERS = {
    "10.0.0.0/8": "http://11.1.2.3:8000 http://10.evil.test:8000 http://167772161:8000 http://[::ffff:10.0.0.1]:8000",
    "10.0.0.0/8:8000": "http://10.1.2.3:8001",
    "*.engines.svc": "http://engines.svc http://evil-engines.svc",
    "vllm-0": "http://vllm-0.evil.test http://vllm-0@evil.test:8000 http://evil.test@vllm-0:8000 "
    "http://evil.test\\@vllm-0 http://allm-0:8000 http://vllm-0:port ftp://vllm-0 vllm-0",
    "*": "http://",
    "[vllm-0": "http://vllm-0",
}
ODD = [(f"http://vllm-0:8000{end}", "vllm-0") for end in ("\n", "/ v1")]


@pytest.mark.parametrize(
    ("url", "host"), [*ODD, *((url, host) for host, urls in STRANGERS.items() for url in urls.split())]
)
def test_engines_that_a_pool_does_not_allow(url, host):
    """X2: however another reader would take the URL."""
    assert not is_engine_allowed(url, [host])


LONG = "ms-inference-scheduling-llm-d-modelservice"


@pytest.mark.parametrize(
    ("name", "deployment"),
    [
        ("vllm-68b4f9c9d7-x2x7k", "vllm"),
        ("vllm-qwen-7b-68b4f9c9-x2x7k", "vllm-qwen-7b"),
        ("vllm-0", ""),
        ("r3b", ""),
        ("68b4f9c9d7-x2x7k", ""),
        ("vllm-68b4f9c-x2x7k", ""),
        ("vllm-68b4f9c9d7x-x2x7k", ""),
        ("vllm-68b4f9c9d7-x2x7", ""),
        ("vllm-68b4f9c9d7-x2x7a", ""),
        ("vllm-production-zone1", ""),
        (f"{LONG}-decode-8ff7fd5b58lw9", f"{LONG}-decode"),
        (f"{LONG}-prefill-8ff7fd5b8lw9", f"{LONG}-prefill"),
        ("inference-scheduling-llm-d-modelservice-decode-8ff7fd5b58lw9", ""),
        ("ms-inference-scheduling-llm-d-modelservice-decode-8ff7fd5b58lw1", ""),
    ],
)
def test_names_of_a_deployments_pods(name, deployment):
    """As ReplicaSets make them: two endings of letters without vowels and of digits that look like no letter.

    Of a name with more than 63 characters the first of them is cut, and the dash between them.
    """
    assert deployment_of(name) == deployment


@pytest.mark.parametrize(
    ("pattern", "name", "is_one"),
    [
        ("acme", "acme", True),
        ("acme", "ACME", False),
        ("Acme", "acme", False),
        ("acme", "acme2", False),
        ("*", "", True),
        ("*", "acme\n", True),
        ("team-*", "team-", True),
        ("team-*", "tea", False),
        ("*-prod", "a-prod", True),
        ("*-prod", "a-prod2", False),
        ("ab*ba", "aba", False),
        ("ab*ba", "abba", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c-b-c", True),
        ("a*b*c", "ac", False),
        ("a*bc*c", "abc", False),
        ("a**c", "ac", True),
        ("a.c", "abc", False),
    ],
)
def test_a_pattern_stands_for_names_with_anything_where_its_stars_are(pattern, name, is_one):
    assert NamePatterns((pattern,)).match(name) is is_one


@pytest.mark.parametrize("pattern", ["*a*b", "*-a-*", "*a*a*a*a*a*a*a*a*b"])
def test_a_long_name_that_a_caller_made_up_holds_nobody_up(pattern):
    """A2 deny-by-default: patterns are asked about before names are checked, which may have megabytes."""
    started = time.thread_time()
    NamePatterns((pattern,)).match("a-" * 500_000 + "\n")
    assert time.thread_time() - started < 1
