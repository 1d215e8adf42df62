"""Holds manifests against the API's schemas, each release once. Runs in ``.venv-kubernetes``; JSON on stdin and stdout.

The package's own function reads a release's definitions for each manifest again, and takes a hundred times as long.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any


def _validator(folder: Path, registry: Any, manifest: dict[str, Any]) -> Any:
    """What checks such a manifest; None: the API's own schemas know no such kind."""
    import jsonschema  # of that environment

    version = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", manifest["apiVersion"])
    file = folder / f"{manifest['kind'].lower()}-{version}.json"
    if not file.exists():
        return None
    return jsonschema.Draft202012Validator(json.loads(file.read_text()), registry=registry)


def findings(versions: list[str], manifests: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Release, manifest and complaint; `no schema` for kinds of others."""
    import kubernetes_validate
    from referencing import Registry, Resource

    found = []
    schemas = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    for version in versions:
        (folder,) = (one for one in schemas.iterdir() if re.fullmatch(rf"v{version}\.\d+-local-strict", one.name))
        definitions = Resource.from_contents(json.loads((folder / "_definitions.json").read_text()))
        registry = definitions @ Registry()
        validators: dict[tuple[str, str], Any] = {}
        for one in manifests:
            kind = one["apiVersion"], one["kind"]
            if kind not in validators:
                validators[kind] = _validator(folder, registry, one)
            name = f"{one['kind']}/{one['metadata']['name']}"
            errors = validators[kind].iter_errors(one) if validators[kind] else ()
            found += [(version, name, f"{error.json_path}: {error.message[:200]}") for error in errors]
            found += [] if validators[kind] else [(version, name, "no schema")]
    return found


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    json.dump(findings(asked["versions"], asked["manifests"]), sys.stdout)
