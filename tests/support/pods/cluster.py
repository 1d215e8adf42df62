"""Controllers: workloads keep their number of pods and roll templates out, budgets hold evictions back."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Self

from tests.support.pods.images import Image
from tests.support.pods.kubelet import Pod
from tests.support.pods.network import PodNetwork
from tests.support.pods.volumes import Objects

Manifest = Mapping[str, Any]
_LOOK_SECONDS = 0.1
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def number_of(value: int | str, of: int, *, up: bool) -> int:
    """A count, or a share of pods, as Kubernetes rounds it."""
    if isinstance(value, int):
        return value
    exact = int(value.rstrip("%")) * of / 100
    return ceil(exact) if up else int(exact)


@dataclass
class Cluster:
    """Nodes, and what runs on them. Use as an asynchronous context; `apply` is what helm and kubectl do."""

    folder: Path
    images: Mapping[str, Image]
    nodes: list[str]
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    pods: list[Pod] = field(default_factory=list)
    _network: PodNetwork = field(default_factory=PodNetwork)
    _controller: asyncio.Task[None] | None = None
    _ending: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self.objects = Objects(self.images, self.folder / "claims")
        self.hosts = self.folder / "hosts"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.hosts.write_text("127.0.0.1 localhost\n")
        self._network.open()
        self._controller = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._controller is not None
        self._controller.cancel()
        results = await asyncio.gather(self._controller, return_exceptions=True)
        await asyncio.gather(
            *(pod.lose() for pod in self.pods if not pod.gone.is_set()), *self._ending, return_exceptions=True
        )
        self._network.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    def apply(self, *manifests: Manifest) -> None:
        """Declares them; controllers do the rest."""
        self.objects.apply(*copy.deepcopy(manifests))

    def addresses(self) -> list[str]:
        """Of pods, for certificates."""
        return self._network.addresses()

    def workload(self, name: str) -> Manifest:
        """A Deployment or StatefulSet, by the end of its name."""
        (found,) = (one for one in self._workloads() if one["metadata"]["name"].endswith(name))
        return found

    def scale(self, name: str, count: int) -> None:
        """Sets the number of its pods."""
        changed = copy.deepcopy(dict(self.workload(name)))
        changed["spec"]["replicas"] = count
        self.objects.apply(changed)

    def restart(self, name: str) -> None:
        """`kubectl rollout restart`: another template, so all pods are replaced."""
        changed = copy.deepcopy(dict(self.workload(name)))
        metadata = changed["spec"]["template"]["metadata"]
        annotations = metadata.setdefault("annotations", {})
        annotations["kubectl.kubernetes.io/restartedAt"] = str(self.chance.random())
        self.objects.apply(changed)

    def pods_of(self, name: str) -> list[Pod]:
        """The pods of a workload that are not to go, the oldest first."""
        owner = self.workload(name)["metadata"]["name"]
        return [one for one in self.pods if one.owner == owner and not one.is_terminating]

    def is_settled(self, name: str) -> bool:
        """Whether its pods are all of its template, as many as declared, and ready; and no old one is left."""
        workload = self.workload(name)
        pods, wanted = self.pods_of(name), workload["spec"]["replicas"]
        going = [one for one in self.pods if one.owner == workload["metadata"]["name"] and one.is_terminating]
        for pod in self.pods:
            if error := pod.failure():
                raise error
        assert not going, f"{[one.name for one in going]} are going"
        assert [one.is_ready for one in pods] == [True] * wanted, "; ".join(one.told() for one in pods)
        return all(one.revision == _revision(workload) for one in pods)

    def evict(self, pod: Pod) -> bool:
        """Whether its budget lets it go; then it goes."""
        for budget in self._of_kind("PodDisruptionBudget"):
            selector = budget["spec"]["selector"]["matchLabels"]
            if not _selects(selector, pod.labels):
                continue
            chosen = [one for one in self.pods if _selects(selector, one.labels) and not one.gone.is_set()]
            total = sum(
                one["spec"]["replicas"]
                for one in self._workloads()
                if _selects(selector, one["spec"]["template"]["metadata"]["labels"])
            )
            healthy = sum(one.is_ready for one in chosen)
            if total - healthy + 1 > number_of(budget["spec"]["maxUnavailable"], total, up=True):
                return False
        self._end(pod)
        return True

    async def lose_node(self, node: str) -> list[Pod]:
        """Ends all that runs on it at once; the node does not come back. Its pods are made anew elsewhere."""
        self.nodes.remove(node)
        lost = [one for one in self.pods if one.node == node and not one.gone.is_set()]
        await asyncio.gather(*(one.lose() for one in lost))
        return lost

    async def _run(self) -> None:
        while True:
            self._write_hosts()
            self.pods = [one for one in self.pods if not one.gone.is_set()]
            for workload in self._workloads():
                self._reconcile(workload)
            await asyncio.sleep(_LOOK_SECONDS)

    def _reconcile(self, workload: Manifest) -> None:
        name, wanted = workload["metadata"]["name"], workload["spec"]["replicas"]
        mine = [one for one in self.pods if one.owner == name]
        staying = [one for one in mine if not one.is_terminating]
        old = [one for one in staying if one.revision != _revision(workload)]
        if workload["kind"] == "StatefulSet":
            self._reconcile_set(workload, mine, staying, old)
            return
        rolling = workload["spec"].get("strategy", {}).get("rollingUpdate", {})
        surge = number_of(rolling.get("maxSurge", "25%"), wanted, up=True)
        unavailable = number_of(rolling.get("maxUnavailable", "25%"), wanted, up=False)
        ready = sum(one.is_ready for one in staying)
        if old:
            # Those that are not ready cost nothing.
            for pod in sorted(old, key=lambda one: one.is_ready):
                if not pod.is_ready or ready > wanted - unavailable:
                    ready -= pod.is_ready
                    self._end(pod)
                    break
        for pod in sorted(staying, key=lambda one: (one.is_ready, one not in old))[
            : max(0, len(staying) - len(old) - wanted)
        ]:
            self._end(pod)
        fresh = len([one for one in staying if one not in old and not one.is_terminating])
        # A pod that is going may still have its GPU: without a surge the next one comes once it is gone.
        room = wanted + surge - (len(mine) if surge == 0 else len([one for one in mine if not one.is_terminating]))
        for _ in range(min(room, wanted - fresh)):
            self._begin(workload, f"{name}-{_revision(workload)}-{self._suffix(5)}")

    def _reconcile_set(self, workload: Manifest, mine: list[Pod], staying: list[Pod], old: list[Pod]) -> None:
        name, wanted = workload["metadata"]["name"], workload["spec"]["replicas"]
        for pod in staying:
            if int(pod.name.rpartition("-")[2]) >= wanted:
                self._end(pod)
        if old and all(one.is_ready for one in staying if one not in old) and len(mine) == wanted == len(staying):
            self._end(max(old, key=lambda one: int(one.name.rpartition("-")[2])))
        taken = {one.name for one in mine}
        for number in range(wanted):
            if f"{name}-{number}" not in taken:
                self._begin(workload, f"{name}-{number}")

    def _begin(self, workload: Manifest, name: str) -> None:
        template = copy.deepcopy(workload["spec"]["template"])
        node = min(self.nodes, key=lambda one: sum(pod.node == one and not pod.gone.is_set() for pod in self.pods))
        metadata = {**template["metadata"], "name": name}
        # As the API server does since 1.35.
        metadata["labels"] = {**metadata["labels"], "topology.kubernetes.io/zone": f"zone-of-{node}"}
        claims = {
            one["metadata"]["name"]: f"{one['metadata']['name']}-{name}"
            for one in workload["spec"].get("volumeClaimTemplates", [])
        }
        pod = Pod(
            manifest={"metadata": metadata, "spec": template["spec"]},
            node=node,
            objects=self.objects,
            network=self._network,
            folder=self.folder / "pods" / f"{name}.{self._suffix(3)}",
            hosts=self.hosts,
            claims=claims,
            owner=workload["metadata"]["name"],
            revision=_revision(workload),
        )
        pod.start()
        self.pods.append(pod)

    def _end(self, pod: Pod) -> None:
        pod.is_terminating = True  # its Services are without it from here on
        self._ending.append(asyncio.create_task(pod.delete()))

    def _write_hosts(self) -> None:
        """Names of Services, each with addresses of pods that are ready; in place, as containers have the file."""
        lines = ["127.0.0.1 localhost"]
        for service in self._of_kind("Service"):
            name, spec = service["metadata"]["name"], service["spec"]
            chosen = [one for one in self.pods if _selects(spec["selector"], one.labels) and not one.gone.is_set()]
            shown = [one for one in chosen if one.is_ready or spec.get("publishNotReadyAddresses")]
            lines += [f"{one.address} {name} {one.name}.{name}" for one in shown]
        text = "\n".join(lines) + "\n"
        if text != self.hosts.read_text():
            self.hosts.write_text(text)

    def _workloads(self) -> list[Manifest]:
        return [*self._of_kind("Deployment"), *self._of_kind("StatefulSet")]

    def _of_kind(self, kind: str) -> list[Manifest]:
        return [one for (found, _), one in self.objects.found.items() if found == kind]

    def _suffix(self, length: int) -> str:
        return "".join(self.chance.choices(_LETTERS, k=length))


def _selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return selector.items() <= labels.items()


def _revision(workload: Manifest) -> str:
    """Of its template, as in the names of a Deployment's pods."""
    digest = hashlib.sha256(json.dumps(workload["spec"]["template"], sort_keys=True).encode()).digest()
    return "".join(_LETTERS[one % len(_LETTERS)] for one in digest[:9])
