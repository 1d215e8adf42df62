"""Fixtures shared by all suites."""

from __future__ import annotations

import gc
import os
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from pytest_cov.engine import CovController
from xdist.remote import Producer

from registry.etcd3.client import Client
from registry.etcd3.options import ClientOptions
from sidecar.metrics import INTERNAL_ERRORS
from tests.support.engines import RealVllm, VllmFlags
from tests.support.etcd import Cluster, make_cluster, one_member, running_etcd
from tests.support.order import ByEngine, sort
from tests.support.ordered import left
from tests.support.rewritten import rewrite_all
from tests.support.tiny import Tiny, make_tiny

ROOT = Path(__file__).parents[1]
# The same examples at every run, so that what passes once passes again: no strategy may ask a set for its order, which
# is another one in each process. LORAPLANE_TEST_SEARCH=1 looks for new ones. How fast a machine draws is no matter.
_SLOW = [HealthCheck.too_slow]
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("search", derandomize=False, deadline=None, suppress_health_check=_SLOW, print_blob=True)
settings.load_profile("search" if os.environ.get("LORAPLANE_TEST_SEARCH") else "same")

# What a shell or a machine may have set, and we or a library of ours would follow: settings of ours, another hub, how
# wide and how colourful a terminal is, and proxies, which would be asked for 127.0.0.1.
_KEPT = ("LORAPLANE_ENGINE_PYTHON", "LORAPLANE_TEST_")
_PROXIES = {"ALL_PROXY", "GRPC_PROXY", "HTTP_PROXY", "HTTPS_PROXY"}
_FOLLOWED = {*_PROXIES, "COLUMNS", "FORCE_COLOR", "HF_ENDPOINT", "NO_COLOR"}
for _name in [*os.environ]:
    if _name.upper() in _FOLLOWED or (_name.startswith("LORAPLANE_") and not _name.startswith(_KEPT)):
        del os.environ[_name]

# A run in the background of a shell may start with interrupts ignored, and programs under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The coverage that is asked of the pure rooms rests on their unit tests alone: what is measured takes twice as long.
_ROOMS = (
    *("access", "desired", "formats", "loop", "lora", "model", "plan", "residency", "resolver", "rollout"),
    *("transactions", "verify"),
)
# Of rooms of which a few modules are pure, the tests that are about these or reach what is left of them.
_FILES = (
    *("audit/following", "engines/faults_of_ours", "engines/single_slot", "engines/vllm_responses", "etcd3/classify"),
    *("etcd3/codec", "etcd3/small_parts", "page/front", "page/rows", "picker/answers", "picker/decide"),
    *("picker/request_body", "picker/served", "report/events", "report/http", "report/status", "report/writer"),
    "vllm_plugin/protocol",
)
_MEASURED = (
    *(f"tests/unit/{room}/" for room in _ROOMS),
    *(f"tests/unit/{room}/test_{name}.py" for room, name in (file.split("/") for file in _FILES)),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """An option of `make test`."""
    parser.addoption("--cov-pure", action="store_true", help="with --cov: only of tests of the pure rooms")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """Looks for no garbage meanwhile, nor later among all that was collected, which stays to the end.

    Nothing is measured meanwhile, which would take longer than to collect: a master has imported what is asked about.
    """
    if controller := _pure(session.config):
        if not hasattr(session.config, "workerinput"):
            _import_pure_rooms(controller)
        controller.pause()
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """See `tests.support.order`."""
    sort(items)


def pytest_configure(config: pytest.Config) -> None:
    """Prepares for workers in their master; ends what measures beside pytest-cov's own measuring in a worker.

    A worker is given the arguments of its master, so pytest-cov begins there as in a master, before it learns better,
    and what it begins would not pause with the rest.
    """
    if not hasattr(config, "workerinput"):
        if config.getoption("numprocesses", None):
            rewrite_all(config)
    elif controller := _coverage(config):
        controller.cov.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """What needs no coverage runs without it, its fixtures too.

    For what is marked `no_cover` pytest-cov pauses and goes on by itself. What was begun twice would never pause again.
    """
    if (controller := _pure(item.config)) and controller.started is not _is_measured(item):
        (controller.pause if controller.started else controller.resume)()
    return (yield)


def _is_measured(item: pytest.Item) -> bool:
    unmeasured = ("engine", "no_cover")
    return item.nodeid.startswith(_MEASURED) and not any(map(item.get_closest_marker, unmeasured))


def _import_pure_rooms(controller: CovController) -> None:
    """Runs the bodies of their modules while that is measured."""
    for pattern in controller.cov.get_option("report:include"):
        for path in ROOT.glob(f"{pattern}*/*.py" if pattern.endswith("/*") else pattern):
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))


def _pure(config: pytest.Config) -> CovController | None:
    return _coverage(config) if config.getoption("--cov-pure") else None


def _coverage(config: pytest.Config) -> CovController | None:
    return getattr(config.pluginmanager.getplugin("_cov"), "cov_controller", None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByEngine | None:
    """See `tests.support.order`."""
    return ByEngine(config, log) if config.getvalue("dist") == "loadfile" else None


def _failures() -> float:
    return sum(
        sample.value for metric in INTERNAL_ERRORS.collect() for sample in metric.samples if "total" in sample.name
    )


@pytest.fixture(autouse=True)
def _no_part_fails(request: pytest.FixtureRequest) -> Iterator[None]:
    """The supervisor keeps a process going over a fault of ours; no test may pass by that."""
    before = _failures()
    yield
    if not request.node.get_closest_marker("breaks_parts"):
        assert _failures() == before, "a part of a sidecar failed: see part_failed in the log above"


@pytest.fixture(autouse=True)
def _ordered_faults_strike() -> Iterator[None]:
    """A fault that never struck would leave its test without a meaning, and green."""
    left()
    yield
    assert not (missed := left()), f"ordered, and never struck: {', '.join(missed)}"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Tiny:
    """The model and its adapters, shared: nothing changes them."""
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def real_vllm(tmp_path_factory, tiny) -> Iterator[RealVllm]:
    """Real vLLM with the tiny model, started when first needed and ended with the session."""
    vllm = RealVllm(tiny.model, tmp_path_factory.mktemp("vllm"))
    yield vllm
    vllm.stop()


@pytest.fixture(scope="session")
def socket() -> Iterator[str]:
    """A path short enough for a socket, on which engines ask; whether anybody answers there is up to each test."""
    with TemporaryDirectory(prefix="lp-") as folder:
        yield f"{folder}/resolver.sock"


@pytest.fixture(scope="session")
def plugin_flags(tmp_path_factory, socket) -> VllmFlags:
    """Of the one real vLLM with our plugin: it obeys who has a token, asks on `socket`, and may ask short prompts."""
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text("the-control-token\n")
    store = str(tmp_path_factory.getbasetemp())
    return VllmFlags(plugin=True, resolver=socket, store=store, control_token_file=str(token), proves=True)


@dataclass(frozen=True)
class EtcdForTest:
    """A running etcd that is shared by the session, and a prefix that is this test's own (no slash at its end)."""

    cluster: Cluster
    prefix: str

    @property
    def endpoints(self) -> tuple[str, ...]:
        return self.cluster.endpoints

    def options(self, **changes: object) -> ClientOptions:
        return self.cluster.options(**changes)

    def patient(self) -> Client:
        """See `Cluster.patient`."""
        return self.cluster.patient()

    def key(self, *parts: str) -> bytes:
        return "/".join((self.prefix, *parts)).encode()


@pytest.fixture(scope="session")
def etcd_member(tmp_path_factory) -> Iterator[Cluster]:
    """One member for the whole session. Tests that stop or replace etcd make a cluster of their own."""
    with one_member(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture
def etcd(etcd_member) -> EtcdForTest:
    """The session's etcd with a fresh prefix."""
    return EtcdForTest(etcd_member, f"/test/{uuid.uuid4().hex}")


@pytest.fixture
async def etcd_client(etcd) -> AsyncIterator[Client]:
    """A client of the session's etcd, which waits for it however slow the machine is."""
    client = etcd.patient()
    yield client
    await client.aclose()


@pytest.fixture
async def own_etcd(tmp_path) -> AsyncIterator[Cluster]:
    """One running member of this test's own."""
    async with running_etcd(make_cluster(tmp_path / "etcd")) as cluster:
        yield cluster


@pytest.fixture
async def etcd_cluster(tmp_path) -> AsyncIterator[Cluster]:
    """Three members of this test's own, to be killed and frozen at will."""
    async with running_etcd(make_cluster(tmp_path / "etcd", 3)) as cluster:
        yield cluster
