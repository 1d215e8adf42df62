"""One pod as a kubelet runs it: init containers, native sidecars, startup gates, probes, the end with its hooks.

The order of an end is the kubelet's own: the hooks of all containers at once; SIGTERM to main containers after their
hooks; to native sidecars once every main container has ended, in reverse order; SIGKILL when the grace is over.
"""

from __future__ import annotations

import asyncio
import signal
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.support.pods import volumes
from tests.support.pods.container import Container, Mount, NotPlayed, check_known
from tests.support.pods.network import PodNetwork
from tests.support.pods.volumes import Objects
from tests.support.waiting import eventually

Manifest = Mapping[str, Any]
# Between starts of a container that ends: at once, then twice as long each time.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 10.0, 300.0
# What a container has after SIGTERM however long its hook took.
_LEAST_SECONDS = 2.0
_RETRY_SECONDS = 0.2
_FOR_EVER = 86_400.0
# A kubelet looks at no certificate.
_ANY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_ANY.check_hostname, _ANY.verify_mode = False, ssl.CERT_NONE


@dataclass
class Pod:
    """One pod on its node.

    Attributes:
        events: what `kubectl describe` would show.
        waits_for: why its containers are not created; empty: they are.
    """

    manifest: Manifest
    node: str
    objects: Objects
    network: PodNetwork
    folder: Path
    hosts: Path
    claims: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    revision: str = ""
    address: str = ""
    waits_for: str = "not started"
    is_terminating: bool = False
    events: list[str] = field(default_factory=list)
    containers: dict[str, Container] = field(default_factory=dict)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    _namespace: str = ""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def labels(self) -> Mapping[str, str]:
        return dict(self.manifest["metadata"].get("labels", {}))

    @property
    def spec(self) -> Manifest:
        return dict(self.manifest["spec"])

    @property
    def is_ready(self) -> bool:
        """All of its containers are; a pod that is to go is in no Service any more."""
        names = [one["name"] for one in self._sidecars() + self.spec["containers"]]
        return not self.is_terminating and bool(self.containers) and all(self.containers[name].ready for name in names)

    def _sidecars(self) -> list[Manifest]:
        return [one for one in self.spec.get("initContainers", []) if one.get("restartPolicy") == "Always"]

    def start(self) -> None:
        """Begins; what goes on is in tasks of the pod."""
        self._namespace, self.address = self.network.add()
        self._go(self._run())

    def _go(self, work: Any) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _run(self) -> None:
        self.containers = await self._created()
        self.waits_for = ""
        for spec in self.spec.get("initContainers", []):
            container = self.containers[spec["name"]]
            if spec.get("restartPolicy") == "Always":
                self._go(self._keep(container))
                await eventually(partial(getattr, container, "started"), timeout_seconds=_FOR_EVER)
            else:
                await self._complete(container)
        for spec in self.spec["containers"]:
            self._go(self._keep(self.containers[spec["name"]]))

    async def _created(self) -> dict[str, Container]:
        """Waits, as in ContainerCreating, until there is all that it needs."""
        while True:
            try:
                return self._make_containers()
            except LookupError as missing:
                self.waits_for = str(missing.args[0])
                if self.waits_for not in self.events:
                    self.events.append(self.waits_for)
                await asyncio.sleep(_RETRY_SECONDS)

    def _make_containers(self) -> dict[str, Container]:
        spec, context = self.spec, self.spec.get("securityContext", {})
        made = volumes.make(self.name, spec, self.claims, self.objects, self.folder)
        groups = [*context.get("supplementalGroups", []), *([context["fsGroup"]] if "fsGroup" in context else [])]
        found = {}
        for one in [*spec.get("initContainers", []), *spec["containers"]]:
            check_known(one)
            own = one.get("securityContext", {})
            user = own.get("runAsUser", context.get("runAsUser", 0))
            hosts = Mount(self.hosts, "/etc/hosts", read_only=True)
            found[one["name"]] = Container(
                spec=one,
                image=self.objects.image(one["image"]),
                folder=self.folder,
                namespace=self._namespace,
                mounts=[*volumes.mounts(one, made), hosts],
                environment=volumes.variables(one, self.manifest, self.address, self.objects),
                user=(user, own.get("runAsGroup", context.get("runAsGroup", 0)), groups),
            )
        return found

    async def _complete(self, container: Container) -> None:
        """An init container, until it succeeds."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            await container.start()
            await container.ended.wait()
            if container.codes[-1] == 0:
                return
            self.events.append(f"init container {container.name} ended with {container.codes[-1]}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _keep(self, container: Container) -> None:
        """Runs a container, and starts it again whenever it ends, until the pod is to go."""
        pause = 0.0
        while self._goes_on():
            await container.start()
            began = time.monotonic()
            probing = asyncio.create_task(self._probe(container))
            try:
                await container.ended.wait()
            finally:
                probing.cancel()
            if not self._goes_on():
                return
            self.events.append(f"container {container.name} ended with {container.codes[-1]}")
            if time.monotonic() - began > 2 * _LONGEST_PAUSE_SECONDS:
                pause = 0.0
            await asyncio.sleep(pause)
            pause = min(max(2 * pause, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
            container.restarts += 1

    def _goes_on(self) -> bool:
        return not self.is_terminating

    async def _probe(self, container: Container) -> None:
        """Startup first; then liveness and readiness, each at its period."""
        if (startup := container.spec.get("startupProbe")) and not await self._starts(container, startup):
            await self._restart(container, "startup")
            return
        container.started = True
        async with asyncio.TaskGroup() as tasks:
            if readiness := container.spec.get("readinessProbe"):
                tasks.create_task(self._stays(container, readiness, is_readiness=True))
            else:
                container.ready = True
            if liveness := container.spec.get("livenessProbe"):
                tasks.create_task(self._stays(container, liveness, is_readiness=False))

    async def _starts(self, container: Container, probe: Manifest) -> bool:
        for _ in range(probe.get("failureThreshold", 3)):
            await asyncio.sleep(probe.get("periodSeconds", 10))
            if await self._asks(probe):
                return True
        return False

    async def _stays(self, container: Container, probe: Manifest, *, is_readiness: bool) -> None:
        failures, threshold = 0, probe.get("failureThreshold", 3)
        while True:
            failures = 0 if await self._asks(probe) else failures + 1
            if is_readiness and (failures == 0 or failures >= threshold):
                container.ready = failures == 0
            elif not is_readiness and failures >= threshold and not self.is_terminating:
                await self._restart(container, "liveness")
                return
            await asyncio.sleep(probe.get("periodSeconds", 10))

    async def _asks(self, probe: Manifest) -> bool:
        """One probe: a kubelet asks the pod's address."""
        match probe["httpGet"]:
            case {"path": str(path), "port": int(port), "scheme": "HTTPS"}:
                url = f"https://{self.address}:{port}{path}"
            case {"path": str(path), "port": int(port), **more} if not more:
                url = f"http://{self.address}:{port}{path}"
            case other:
                raise NotPlayed(f"probe {other}")
        try:
            async with httpx.AsyncClient(
                trust_env=False, timeout=probe.get("timeoutSeconds", 1), verify=_ANY
            ) as client:
                return (await client.get(url)).status_code < 400
        except httpx.HTTPError:
            return False

    async def _restart(self, container: Container, probe: str) -> None:
        self.events.append(f"container {container.name} failed its {probe} probe")
        await self._end(container, float(self.spec.get("terminationGracePeriodSeconds", 30)), None)

    async def delete(self) -> None:
        """Ends the pod as `kubectl delete pod` does, and returns when it is gone."""
        self.is_terminating = True
        self._tasks[0].cancel()  # nothing more is started
        grace = float(self.spec.get("terminationGracePeriodSeconds", 30))
        running = {name: one for name, one in self.containers.items() if one.is_running}
        mains = [running[one["name"]] for one in self.spec["containers"] if one["name"] in running]
        ended = [one.ended for one in mains]
        async with asyncio.TaskGroup() as tasks:
            for container in mains:
                tasks.create_task(self._end(container, grace, None))
            turn = ended
            for spec in reversed(self._sidecars()):
                if (sidecar := running.get(spec["name"])) is not None:
                    tasks.create_task(self._end(sidecar, grace, turn))
                    turn = [sidecar.ended]
        await self._remove()

    async def _end(self, container: Container, grace: float, turn: list[asyncio.Event] | None) -> None:
        """Hook, SIGTERM, and SIGKILL after the grace. `turn`: what has to have ended before it gets its SIGTERM."""
        end = time.monotonic() + grace
        if hook := container.spec.get("lifecycle", {}).get("preStop"):
            code = await container.execute(hook["exec"]["command"], grace)
            if code:
                self.events.append(f"hook of {container.name} ended with {code}")
        for event in turn or ():
            with suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), max(0.0, end - time.monotonic()))
        container.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(container.ended.wait(), max(_LEAST_SECONDS, end - time.monotonic()))
        except TimeoutError:
            self.events.append(f"container {container.name} was killed: {grace:g} s were over")
            container.kill()
            await container.ended.wait()

    async def lose(self) -> None:
        """Its node vanishes: nothing of it answers, and nobody is told."""
        self.is_terminating = True
        self.network.cut(self._namespace)
        for container in self.containers.values():
            container.kill()
        await self._remove()

    async def _remove(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for container in self.containers.values():
            container.kill()
            if container.process is not None:
                await container.ended.wait()
        self.network.remove(self._namespace)
        self.gone.set()

    def told(self) -> str:
        """For people: how far it is, and what befell it."""
        states = {name: (one.started, one.ready) for name, one in self.containers.items()}
        return f"{self.name}: {self.waits_for} {self.events} {states}"

    def failure(self) -> BaseException | None:
        """What broke in a task of this pod; None: nothing."""
        done = (task for task in self._tasks if task.done() and not task.cancelled())
        return next((error for task in done if (error := task.exception())), None)
