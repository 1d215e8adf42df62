"""The access file: what is read of it, and how a wrong one is refused."""

from __future__ import annotations

import pytest

from registry.access.file import AccessInvalid, read_access
from registry.access.roles import AccessRole

HEAD = "apiVersion: loraplane/v1\nkind: Access\n"
SECURITY = "  - role: security\n    users: [root]\n"
WHOLE = f"""{HEAD}authentication:
  trustDomains: [ops.example]
  certificateNames: [dns, commonName]
  issuers:
    - issuer: https://ci.example
      audiences: [loraplane]
      prefix: "ci:"
      algorithms: [RS256, ES256]
      jwks: https://ci.example/jwks
      require: {{repository: acme/training}}
bindings:
{SECURITY}  - role: publisher
    groups: ["ml-{{tenant}}-publishers"]
    tenants: ["{{tenant}}"]
    pools: [qwen-*]
    sources: ["s3://adapters/{{tenant}}/", "file:///srv/{{tenant}}"]
    credentials: ["{{tenant}}-*"]
"""


def read(text: str):
    return read_access(text.encode(), "access.yaml")


def refused(text: str) -> str:
    with pytest.raises(AccessInvalid) as caught:
        read(text)
    return str(caught.value)


def bound(**fields: object) -> str:
    lines = "".join(f"    {name}: {value}\n" for name, value in fields.items() if name != "role")
    return f"{HEAD}bindings:\n{SECURITY}  - role: {fields['role']}\n{lines}"


def test_all_of_it_is_read():
    access = read(WHOLE)
    issuer = access.authentication.issuers[0]
    assert (issuer.prefix, issuer.algorithms, issuer.groups) == ("ci:", ("RS256", "ES256"), "groups")
    assert issuer.require == {"repository": "acme/training"}
    assert access.authentication.trust_domains == ("ops.example",)
    assert [one.role for one in access.bindings] == [AccessRole.SECURITY, AccessRole.PUBLISHER]
    assert (access.bindings[0].pools, access.bindings[0].tenants) == (("*",), ())
    assert access.digest.startswith("sha256:")
    assert access.digest != read(WHOLE + "\n").digest
    silent = read(f"{HEAD}bindings:\n{SECURITY}")
    assert silent.authentication.certificate_names == ("dns", "email"), "alternative names, if nothing is said"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"\xff", "access.yaml: it is no YAML that can be read"),
        (b"a: [", "access.yaml, line 1: it is no YAML"),
        (b"a: &x 1\nb: *x\n", "aliases (*name) are not read"),
        (b"a: 1\na: 2\n", "access.yaml, line 1: it is no YAML that can be read: a is there twice"),
        (b"[" * 100_000, "it is no YAML that can be read"),
        (b"", "access.yaml, line 1: Input should be"),
        (b"#" * ((1 << 20) + 1), "1048577 bytes are more than the 1048576"),
        (b"kind: !!int ''", "it is no YAML that can be read: "),
        (b"kind: !!bool x", "it is no YAML that can be read: "),
        (b"kind: !!timestamp x", "it is no YAML that can be read: "),
    ],
)
def test_what_is_no_yaml_is_refused(text, told):
    with pytest.raises(AccessInvalid) as caught:
        read_access(text, "access.yaml")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (WHOLE + "limits: {callsPerSecond: 0}\n", "limits.callsPerSecond: "),
        (WHOLE + "limits: {callsAtOnce: many}\n", "limits.callsAtOnce: "),
        (HEAD + "bindings: []\n", "line 1: bindings: name somebody with the role security"),
        (WHOLE.replace("v1", "v2"), "line 1: apiVersion: "),
        (WHOLE.replace("[ops.example]", "[spiffe://ops]"), "line 4: authentication.trustDomains.0: write a"),
        (WHOLE.replace("acme/training", "[a]"), "line 12: authentication.issuers.0.require.repository."),
        (WHOLE.replace("RS256", "none"), "line 10: authentication.issuers.0.algorithms.0: "),
        (WHOLE.replace("https://ci.example/jwks", "http://ci/jwks"), "line 11: authentication.issuers.0.jwks: "),
        (WHOLE.replace('"ci:"', '"loraplane:"'), "may name somebody whose name begins with loraplane:"),
        (WHOLE.replace('"ci:"', '"loraplane"'), "may name somebody whose name begins with loraplane:"),
        (WHOLE.replace('"ci:"', '"spiffe://ops.example/"'), "may name somebody whose name begins with spiffe://"),
        (WHOLE.replace("      audiences: [loraplane]\n", ""), "line 7: authentication.issuers.0.audiences: Field"),
        (bound(role="viewer", users="[a]"), "say of which tenants the role viewer is, as tenants: [acme] or"),
        (bound(role="viewer", tenants="[a]"), "a binding needs users or groups"),
        (bound(role="king", users="[a]"), "line 6: bindings.1.role: "),
        (bound(role="viewer", users="[a]", tenants="['a/b']"), "write a name with letters, digits"),
        (bound(role="router", users="[a]", tenants="[a]"), "the role router is about all tenants; leave tenants out"),
        (bound(role="backup", users="[a]", pools="[a]"), "the role backup is about all pools; leave pools out"),
        (bound(role="router", users="[a]", sources="['s3://a/']"), "sources and credentials are for the role"),
        (bound(role="viewer", users="[a]", tenants="['{tenant}']"), "each user and group has to hold {tenant}"),
        (bound(role="viewer", users="['{tenant}-{tenant}']", tenants="[a]"), "only one {tenant} is read"),
        (bound(role="viewer", users="['{team}']", tenants="[a]"), "only one {tenant} is read"),
        (bound(role="router", users="['loraplane:root']"), "only loraplane:authenticated is for bindings"),
        (bound(role="publisher", users="[a]", tenants="[a]", sources="['ftp://a/']"), "line 9: bindings.1.sources.0: "),
        (bound(role="publisher", users="[a]", tenants="[a]", sources="['file:///a/../b']"), "write file:///absolute/"),
        (bound(role="viewer", users="[a]", tenants="[a]", tenant="a"), "line 9: bindings.1.tenant: Extra inputs"),
        (bound(role="viewer", users="[3]", tenants="[a]"), "line 7: bindings.1.users.0: "),
    ],
)  # fmt: skip
def test_a_wrong_one_is_refused_with_its_line_and_field(text, told):
    assert told in refused(text)
    assert refused(text).startswith("access.yaml, line ")


@pytest.mark.parametrize(
    ("other", "field"),
    [(("i", "q"), "issuer"), (("j", "p"), "prefix"), (("j", "p:q"), "prefix"), (("j", "q:"), None)],
)
def test_no_two_issuers_have_the_same_name_or_a_prefix_in_common(other, field):
    """A1 named: else the subject q of one would be somebody of the other's."""
    one = '    - {issuer: "%s", audiences: [a], prefix: "%s", algorithms: [RS256], jwks: /k}\n'
    text = f"{HEAD}authentication:\n  issuers:\n{one % ('i', 'p')}{one % other}bindings:\n{SECURITY}"
    if field:
        assert f"issuers: two have the same {field}" in refused(text)
    else:
        assert [issuer.prefix for issuer in read(text).authentication.issuers] == ["p", "q:"]


def test_names_that_stand_for_one_thing_alone_are_told_with_their_binding():
    """Patterns and placeholders may stand for what is to come."""
    bound = "{role: viewer, users: [ann], tenants: [acme, 'b*'], pools: [p, '*']}"
    filled = "{role: viewer, groups: ['ml-{tenant}'], tenants: ['{tenant}'], pools: [q]}"
    access = read(f"{HEAD}bindings:\n{SECURITY}  - {bound}\n  - {filled}\n")
    assert [*access.named()] == [(2, "pool", "p"), (2, "tenant", "acme"), (3, "pool", "q")]
