"""The runner that plays a node does what kubelets do: else what is proven with it would say nothing about them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.netns import why_not
from tests.support.pods import container as runner
from tests.support.pods.cluster import Cluster
from tests.support.pods.container import NotPlayed
from tests.support.pods.fleet import secret
from tests.support.pods.images import Image
from tests.support.pods.kubelet import Pod
from tests.support.waiting import eventually

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"pods need network namespaces: {WHY_NOT}")
SHELL = Image(lambda command, arguments: [*command, *arguments])
# Notes each step with its name; ends at SIGTERM a moment later.
LIVES = 'echo $0 began >> /log/steps; trap "echo $0 told >> /log/steps; exit 0" TERM; while :; do sleep 0.05; done'


def container(name: str, script: str = LIVES, **more: object) -> dict:
    return {
        "name": name,
        "image": "shell:1",
        "command": ["sh", "-c", script, name],
        "volumeMounts": [{"name": "log", "mountPath": "/log"}],
        **more,
    }


def hook(name: str, seconds: float) -> dict:
    return {
        "preStop": {
            "exec": {
                "command": [
                    "sh",
                    "-c",
                    f"echo {name} hook >> /log/steps; sleep {seconds}; echo {name} hooked >> /log/steps",
                ]
            }
        }
    }


def deployment(inits: list[dict], mains: list[dict], count: int = 1, **spec: object) -> dict:
    log = {"name": "log", "emptyDir": {}}
    pod = {
        "initContainers": inits,
        "containers": mains,
        "volumes": [log, *spec.pop("volumes", [])],
        "securityContext": {"fsGroup": 10001},
        **spec,
    }
    rolling = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    template = {"metadata": {"labels": {"app": "x"}}, "spec": pod}
    return {
        "kind": "Deployment",
        "metadata": {"name": "x"},
        "spec": {"replicas": count, "strategy": rolling, "template": template},
    }


@pytest.fixture
async def cluster(tmp_path) -> AsyncIterator[Cluster]:
    tmp_path.chmod(0o755)
    async with Cluster(tmp_path / "cluster", {"shell": SHELL}, ["n1", "n2"]) as cluster:
        yield cluster


async def settled(cluster: Cluster) -> None:
    await eventually(lambda: cluster.is_settled("x"))


def steps(pod: Pod) -> list[str]:
    file = pod.folder / "volumes/log/steps"
    return file.read_text().splitlines() if file.exists() else []


async def test_a_checkout_below_a_mounted_path_is_seen(cluster, tmp_path, monkeypatch):
    """As where it lies below /tmp, which manifests cover with a volume of the pod."""
    checkout = tmp_path / "checkout"
    checkout.mkdir(mode=0o755)
    (checkout / "program").write_text("seen")
    monkeypatch.setattr(runner, "ROOT", checkout)
    above = {"name": "above", "mountPath": str(tmp_path)}
    main = container("main", f"cat {checkout}/program >> /log/steps; {LIVES}")
    main["volumeMounts"].append(above)
    cluster.apply(deployment([], [main], volumes=[{"name": "above", "emptyDir": {}}]))
    await settled(cluster)
    (pod,) = cluster.pods
    await eventually(lambda: steps(pod))
    assert steps(pod)[0].startswith("seen")


async def test_containers_begin_and_end_in_the_order_of_a_kubelet(cluster):
    """Init, sidecar, main; at the end all hooks at once, SIGTERM to main, then to sidecars in reverse."""
    inits = [
        container("init", "echo init ran >> /log/steps"),
        container("first", restartPolicy="Always", lifecycle=hook("first", 1)),
        container("second", restartPolicy="Always"),
    ]
    cluster.apply(deployment(inits, [container("main", lifecycle=hook("main", 3))]))
    await settled(cluster)
    (pod,) = cluster.pods_of("x")
    await eventually(lambda: len(steps(pod)) == 4)  # each container, in whatever order they come to it
    cluster.scale("x", 0)
    await pod.gone.wait()
    assert steps(pod)[0] == "init ran"
    assert {*steps(pod)[1:4]} == {"first began", "second began", "main began"}  # no startup probe holds any back
    assert {*steps(pod)[4:6]} == {"first hook", "main hook"}
    assert steps(pod)[6:] == ["first hooked", "main hooked", "main told", "second told", "first told"]


async def test_a_startup_probe_of_a_sidecar_holds_back_what_comes_after(cluster):
    probe = {"httpGet": {"path": "/", "port": 1}, "periodSeconds": 1, "failureThreshold": 3}
    cluster.apply(deployment([container("side", restartPolicy="Always", startupProbe=probe)], [container("main")]))
    (pod,) = await eventually(lambda: cluster.pods_of("x"))
    await eventually(lambda: "container side failed its startup probe" in pod.events)
    assert not pod.containers["main"].is_running
    assert pod.containers["main"].codes == []


async def test_a_pod_says_which_secret_it_waits_for_and_begins_when_it_is_there(cluster):
    token = {"name": "token", "secret": {"secretName": "control", "defaultMode": 0o440}}
    script = "test $(cat /token/token) = abc && test ! -w /token/token && " + LIVES
    main = container("main", script, securityContext={"runAsUser": 10001, "runAsGroup": 10001})
    main["volumeMounts"].append({"name": "token", "mountPath": "/token", "readOnly": True})
    cluster.apply(deployment([], [main], volumes=[token]))
    (pod,) = await eventually(lambda: cluster.pods_of("x"))
    await eventually(lambda: pod.waits_for == 'secret "control" not found')
    cluster.apply(secret("control", token=b"abc"))
    await settled(cluster)
    assert pod.events == ['secret "control" not found']


async def test_a_root_is_read_only_and_a_user_has_no_rights(cluster):
    script = (
        "! touch /x 2>/dev/null && ! touch /usr/x 2>/dev/null && test $(id -u) = 10002 && touch /log/mine && " + LIVES
    )
    cluster.apply(
        deployment([], [container("main", script, securityContext={"runAsUser": 10002, "runAsGroup": 10001})])
    )
    await settled(cluster)
    (pod,) = cluster.pods_of("x")
    await eventually(lambda: "main began" in steps(pod))
    written = (pod.folder / "volumes/log/mine").stat()
    assert (written.st_uid, written.st_gid, pod.containers["main"].restarts) == (10002, 10001, 0)


async def test_who_does_not_end_in_time_is_killed(cluster):
    deaf = container("main", 'trap "" TERM; echo $0 began >> /log/steps; while :; do sleep 0.05; done')
    cluster.apply(deployment([], [deaf], terminationGracePeriodSeconds=1))
    await settled(cluster)
    (pod,) = cluster.pods_of("x")
    await eventually(lambda: "main began" in steps(pod))
    cluster.scale("x", 0)
    await pod.gone.wait()
    assert pod.events == ["container main was killed: 1 s were over"]


async def test_what_ends_is_started_again_and_the_others_go_on(cluster):
    cluster.apply(deployment([container("side", restartPolicy="Always")], [container("main")]))
    await settled(cluster)
    (pod,) = cluster.pods_of("x")
    main = pod.containers["main"].process
    pod.containers["side"].kill()
    await eventually(lambda: pod.containers["side"].restarts == 1 and pod.is_ready)
    assert (pod.containers["main"].process, pod.events) == (main, ["container side ended with -9"])


async def test_an_update_takes_one_pod_after_the_other_and_a_budget_lets_one_go(cluster):
    budget = {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "x"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "x"}}},
    }
    cluster.apply(deployment([], [container("main")], 3), budget)
    await settled(cluster)
    before, fewest = [one.name for one in cluster.pods_of("x")], 3
    cluster.restart("x")

    def is_done() -> bool:
        nonlocal fewest
        fewest = min(fewest, sum(one.is_ready for one in cluster.pods))
        names = [one.name for one in cluster.pods_of("x")]
        return not {*before} & {*names} and cluster.is_settled("x")

    await eventually(is_done, every_seconds=0.01)
    assert fewest == 2
    first, second, _ = cluster.pods_of("x")
    assert [cluster.evict(first), cluster.evict(second)] == [True, False]
    await settled(cluster)
    assert first.name not in [one.name for one in cluster.pods_of("x")]


async def test_the_pods_of_a_lost_node_are_made_anew_elsewhere(cluster):
    cluster.apply(deployment([], [container("main")], 2))
    await settled(cluster)
    lost = await cluster.lose_node("n1")
    await settled(cluster)
    assert len(lost) == 1
    assert [one.node for one in cluster.pods_of("x")] == ["n2", "n2"]


async def test_what_is_not_played_is_refused(cluster):
    cluster.apply(deployment([], [container("main", stdin=True)]))
    (pod,) = await eventually(lambda: cluster.pods_of("x"))
    with pytest.raises(NotPlayed, match="container main: stdin"):
        await eventually(lambda: cluster.is_settled("x"))
    assert pod.containers == {}
