"""Training jobs that publish a version every other second, and rollout workers that ask for the newest three of each.

What a worker may count on, as docs/manifests.md and docs/plugin.md say it:

- An answer proves its version: name, generation and digest in its header are those that were asked for, and its text is
  that of this version's files (R26).
- What an engine has served and what is still kept is served on, whatever is published, and whatever happens to others;
  what is new is served within moments (R25). An engine that was killed lacks everything until it was given it again.
- A job that stopped is deleted once, by one transaction, and not before its ttl is over (R25).

A version is kept from the answer to its publication until the moment in which that which pushes it out is *sent*: the
outcome of a call under way is not known, and may be either.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from loraplane import AnsweredBy, AsyncRegistry, Published, Unavailable
from sidecar.engines.simulated.engine import SimulatedVllm
from sidecar.engines.simulated.options import Options
from tests.faults.day import Day
from tests.faults.pods import Pod
from tests.support.adapters import write_adapter
from tests.support.checkers.calls import LoggedCall
from tests.support.fleet import BASE, POOL
from tests.support.http_client import http_client

KEEP = 3
EVERY_SECONDS, REQUESTS_PER_SECOND = 2.0, 20.0
# A job goes on for so long before the next one begins; what it leaves ends so long after its last version.
JOB_SECONDS, TTL_SECONDS = 60.0, 20.0
# A trainer's folders: the newest so many stay, so that stores alone have what is older.
FOLDERS = 2 * KEEP
HIDDEN = 256
CALL_SECONDS, REQUEST_SECONDS = 3.0, 30.0
LOOK_SECONDS = 0.2
# A version is served so soon, where nothing else is the matter; after a fault is healed, or an engine began anew, so
# soon. Both on a machine whose processors all this shares.
SWAP_SECONDS, BACK_SECONDS = 5.0, 20.0
PROMPT, TOKENS = "one two three", 8


@dataclass
class Job:
    """A run of a trainer, which has a name of its own. `ends_at`: it may be deleted from then on."""

    name: str
    begun_at: float
    ends_at: float = float("inf")
    versions: list[Version] = field(default_factory=list)


@dataclass
class Version:
    """A generation of a job; times by the monotonic clock.

    Attributes:
        proof: what an answer of it has to prove.
        text: what its files answer.
        sent_at: when its publication was sent first.
        kept_from: when that was answered; infinite: it was not yet.
        kept_until: when the publication was sent that pushes it out; infinite: none was yet.
    """

    job: Job
    proof: AnsweredBy
    text: str
    sent_at: float
    kept_from: float = float("inf")
    kept_until: float = float("inf")

    @property
    def model(self) -> str:
        """What requests call it."""
        return f"{self.proof.name}@{self.proof.generation}"

    def is_kept(self, began: float, ended: float) -> bool:
        """Whether it was kept for the whole of a time."""
        return self.kept_from <= began and ended < min(self.kept_until, self.job.ends_at)


@dataclass
class Excuses:
    """Until when a pod may lack what its engine had, and until when what is new; infinite while a fault lasts."""

    engine: dict[str, float] = field(default_factory=dict)
    news: dict[str, float] = field(default_factory=dict)

    def lacks_all(self, pod: Pod, since: float) -> bool:
        """Whether its engine was away, or had begun anew, at any time since then."""
        return self.engine.get(pod.name, 0.0) > since

    def lacks_news(self, pod: Pod, since: float) -> bool:
        """The same of versions that it never had."""
        return self.lacks_all(pod, since) or self.news.get(pod.name, 0.0) > since

    def is_whole(self, pod: Pod, at: float) -> None:
        """Its engine was seen to have everything."""
        if self.engine.get(pod.name, 0.0) != float("inf"):
            self.engine[pod.name] = min(self.engine.get(pod.name, 0.0), at)


@dataclass
class Training:
    """Jobs, what was asked of their versions, and what was found.

    Attributes:
        reference: an engine of its own, which says what files answer.
        wrong: answers without the right proof, or of other weights.
        unserved: requests and looks that found a kept version missing.
        answers: how often there was each outcome of a request.
        lags: seconds from the answer to a publication until an engine listed it, where no fault was the matter.
        known: when an engine listed a version first, by pod and model.
    """

    day: Day
    registries: list[AsyncRegistry]
    reference: SimulatedVllm = field(default_factory=lambda: SimulatedVllm(Options(served_model_name=BASE)))
    jobs: list[Job] = field(default_factory=list)
    excuses: Excuses = field(default_factory=Excuses)
    wrong: list[str] = field(default_factory=list)
    unserved: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    lags: list[float] = field(default_factory=list)
    known: defaultdict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))

    async def train(self) -> None:
        """Publishes at a steady pace, and begins a new job now and then."""
        for number in itertools.count(1):
            if self.day.quiet.is_set():
                return
            began = time.monotonic()
            if not self.jobs or began - self.jobs[-1].begun_at > JOB_SECONDS:
                self.jobs.append(Job(f"acme/job-{len(self.jobs) + 1}", began))
            await self._publish(self.jobs[-1], number)
            shutil.rmtree(self._folder(number - FOLDERS), ignore_errors=True)
            await asyncio.sleep(max(0.0, began + EVERY_SECONDS - time.monotonic()))

    def _folder(self, number: int) -> Path:
        return self.day.sources / f"step-{number}"

    async def _publish(self, job: Job, number: int) -> None:
        """The next version of a job, sent again and again, to either admin service, until its outcome is known."""
        written = write_adapter(self._folder(number), seed=number, hidden=HIDDEN)
        text = await self._text(f"v{number}", written.directory)
        proof = AnsweredBy(job.name, len(job.versions) + 1, written.digest)
        version = Version(job, proof, text, time.monotonic())
        for one in job.versions[: len(job.versions) + 1 - KEEP]:
            one.kept_until = min(one.kept_until, version.sent_at)
        published = await self._sent(job.name, written.directory, f"step-{number}")
        told = (published.name, published.generation, published.digest)
        assert told == (proof.name, proof.generation, proof.digest), told
        job.ends_at, version.kept_from = version.sent_at + TTL_SECONDS, time.monotonic()
        job.versions.append(version)

    async def _text(self, name: str, folder: Path) -> str:
        """What an engine of its own answers with these files."""
        await self.reference.load(name, str(folder))
        card = await self.reference.card_of(name)
        made = await self.reference.generate(card, PROMPT, TOKENS)
        await self.reference.unload(name)
        return "".join(chr(token.number) for token in made)

    async def _sent(self, name: str, folder: Path, request_id: str) -> Published:
        """What came of it; a call whose outcome is not known is repeated by its id."""
        for registry in itertools.cycle(self.registries):
            try:
                published = await registry.publish(
                    *(folder, name, POOL), keep=KEEP, ttl=TTL_SECONDS, wait=False, request_id=request_id
                )
            except Unavailable:
                await asyncio.sleep(0.1)
                continue
            self.day.calls.append(LoggedCall(request_id=request_id, outcome="ok", revision=published.revision))
            return published
        raise AssertionError("there is no admin service")

    async def work(self) -> None:
        """Asks both engines, in turn, for the newest three versions of the newest job, each as soon as it is there."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with http_client(timeout=REQUEST_SECONDS, limits=limits) as client, asyncio.TaskGroup() as tasks:
            began = time.monotonic()
            for number in itertools.count():
                if self.day.stop.is_set():
                    return
                pod = self.day.pods.living[number % 2]
                newest = self.jobs[-1].versions[-KEEP:] if self.jobs else []
                there = [one for one in newest if one.model in self.known[pod.name]]
                if there:
                    tasks.create_task(self._ask(client, pod, there[number // 2 % len(there)]))
                await asyncio.sleep(max(0.0, began + (number + 1) / REQUESTS_PER_SECOND - time.monotonic()))

    async def _ask(self, client: httpx.AsyncClient, pod: Pod, version: Version) -> None:
        """One request, held against what its version promises."""
        body, began = {"model": version.model, "prompt": PROMPT, "max_tokens": TOKENS}, time.monotonic()
        try:
            answer = await client.post(f"{pod.engine.url}/v1/completions", json=body)
        except httpx.HTTPError as error:
            self._failed(pod, version, began, f"{error!r}")
            return
        if answer.status_code != 200:
            self._failed(pod, version, began, f"{answer.status_code} {answer.text[:120]}")
            return
        self.answers["proven"] += 1
        proof, text = AnsweredBy.of(answer.headers), answer.json()["choices"][0]["text"]
        if (proof, text) != (version.proof, version.text):
            self.wrong.append(f"{pod.name}, {version.model}: {proof}, {text!r}, not {version.text!r}")

    def _failed(self, pod: Pod, version: Version, began: float, why: str) -> None:
        if not version.is_kept(began, time.monotonic()):
            self.answers["pushed out meanwhile"] += 1
        elif self.excuses.lacks_all(pod, began):
            self.answers["engine killed"] += 1
        else:
            self.answers["failed"] += 1
            self.unserved.append(f"{pod.name}, a request for {version.model}: {why}")

    async def look_on(self) -> None:
        """Looks at what engines list, again and again."""
        async with http_client(timeout=REQUEST_SECONDS) as client:
            while not self.day.stop.is_set():
                await self._look(client)
                await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, client: httpx.AsyncClient) -> None:
        began = time.monotonic()
        listings = await self.day.pods.listings(client)
        ended = time.monotonic()
        kept = [one for job in self.jobs for one in job.versions if one.is_kept(began, ended)]
        for pod in self.day.pods.living:
            if pod.name in listings:
                self._hold(pod, listings[pod.name][1], kept, began, ended)

    def _hold(self, pod: Pod, listed: Mapping[str, str], kept: Sequence[Version], began: float, ended: float) -> None:
        """What an engine lists against what is kept."""
        known = self.known[pod.name]
        lacking = [one for one in kept if one.model not in listed]
        lost = [one.model for one in lacking if one.model in known]
        late = [one.model for one in lacking if one.model not in known and one.kept_from < began - SWAP_SECONDS]
        if lost and not self.excuses.lacks_all(pod, began):
            self.unserved.append(f"{pod.name} does not list {lost} any more, at {began:.1f}")
        if late and not self.excuses.lacks_news(pod, began - SWAP_SECONDS):
            self.unserved.append(f"{pod.name} does not list {late} yet, at {began:.1f}")
        if not lacking:
            self.excuses.is_whole(pod, ended)
        for one in kept:
            if one.model in listed and one.model not in known:
                known[one.model] = ended
                if not self.excuses.lacks_news(pod, one.kept_from):
                    self.lags.append(ended - one.kept_from)
