"""What Weights & Biases' SDK asks of the service when it downloads an artifact, written from wandb 0.31."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.web import Exchange, Site

_MADE = "2026-11-28T00:00:00Z"
_VIEWER = {"id": "1", "username": "me", "email": "me@team", "flags": "{}", "teams": {"edges": []}}
# What every artifact has, as far as it does not matter here.
_ARTIFACT: Mapping[str, Any] = {
    "__typename": "Artifact",
    "id": "1",
    "artifactType": {"name": "model"},
    "description": None,
    "metadata": "{}",
    "tags": [],
    "historyStep": None,
    "ttlDurationSeconds": 0,
    "ttlIsInherited": False,
    "state": "COMMITTED",
    "digest": "1",
    "commitHash": "1",
    "createdAt": _MADE,
    "updatedAt": None,
}


@dataclass
class WandbService(Site):
    """Has one artifact, for whoever shows the key.

    Attributes:
        key: of the one user.
        team, project, name, version: of the artifact, which is called TEAM/PROJECT/NAME:VERSION.
        content: its files.
    """

    key: str = ""
    team: str = "team"
    project: str = "project"
    name: str = "sql"
    version: str = "v7"
    content: Mapping[str, bytes] = field(default_factory=dict)

    def answer(self, exchange: Exchange) -> None:
        """See `Site.answer`. Files are had by URLs that need no key, as those of an object store are."""
        self.files = {f"/storage/{name}": content for name, content in self.content.items()}
        self.files["/storage/manifest"] = json.dumps(self._manifest()).encode()
        basic = base64.b64encode(f"api:{self.key}".encode()).decode()
        if exchange.path != "/graphql":
            super().answer(exchange)
        elif exchange.headers.get("Authorization") != f"Basic {basic}":
            exchange.send(401, b'{"errors": [{"message": "user is not logged in"}]}')
        else:
            exchange.send(200, json.dumps(self._replied(exchange.body() or b"")).encode())

    def _replied(self, body: bytes) -> dict[str, Any]:
        asked = json.loads(body)
        query, variables = re.search(r"query\s+(\w+)", asked["query"]), asked.get("variables") or {}
        is_it = variables.get("entity") == self.team and variables.get("project") == self.project
        match query and query[1]:
            case "Viewer" | "GetDefaultEntity":
                return {"data": {"viewer": _VIEWER | {"entity": self.team}}}
            case "ArtifactMembershipByName":
                is_it &= variables["name"] == f"{self.name}:{self.version}"
                return {"data": {"project": {"artifactCollectionMembership": self._membership() if is_it else None}}}
            case "FetchArtifactManifest":
                there = {"file": {"directUrl": f"{self.url}/storage/manifest"}}
                return {"data": {"artifact": {"currentManifest": there}}}
            case "GetArtifactMembershipFileUrls":
                return {"data": {"project": {"artifactCollection": self._urls() if is_it else None}}}
        return {"errors": [{"message": "it does not answer this"}]}

    def _collection(self) -> dict[str, Any]:
        project = {"id": "1", "internalId": "1", "name": self.project, "entity": {"name": self.team}}
        return {"__typename": "ArtifactSequence", "name": self.name, "project": project}

    def _membership(self) -> dict[str, Any]:
        index = int(self.version[1:])
        artifact = {
            **_ARTIFACT,
            "artifactSequence": self._collection(),
            "versionIndex": index,
            "size": sum(map(len, self.content.values())),
            "fileCount": len(self.content),
        }
        return {
            "__typename": "ArtifactCollectionMembership",
            "id": "1",
            "versionIndex": index,
            "createdAt": _MADE,
            "aliases": [],
            "artifactCollection": self._collection(),
            "artifact": artifact,
        }

    def _urls(self) -> dict[str, Any]:
        nodes = [
            {"node": {"__typename": "File", "name": name, "directUrl": f"{self.url}/storage/{name}"}}
            for name in self.content
        ]
        files = {"pageInfo": {"endCursor": None, "hasNextPage": False}, "edges": nodes}
        return {"__typename": "ArtifactSequence", "artifactMembership": {"files": files}}

    def _manifest(self) -> dict[str, Any]:
        contents = {
            name: {"digest": base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()}
            | {"size": len(content), "birthArtifactID": "1"}
            for name, content in self.content.items()
        }
        policy = {"storagePolicy": "wandb-storage-policy-v1", "storagePolicyConfig": {"storageLayout": "V2"}}
        return {"version": 1, **policy, "contents": contents}
