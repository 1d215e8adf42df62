"""Stand-ins for the images that registries have, and our own images built on them, where no registry can be reached.

The base is Debian as mmdebstrap makes it; etcd, vLLM's CPU build and pip's packages are those of the tests'
environments, Prometheus is Debian's.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from registry.tools.devstack.processes import find_etcd
from tests.containers.podman import COMPOSE, FOLDER, PROJECT, ROOT, build, podman, run

PREFIX = "localhost/loraplane-stand-in"
PYTHON, ETCD, PROMETHEUS, ENGINE = (f"{PREFIX}/{name}:1" for name in ("python", "etcd", "prometheus", "vllm"))
VARIABLES = {
    "LORAPLANE_PYTHON_IMAGE": PYTHON,
    "LORAPLANE_ETCD_IMAGE": ETCD,
    "LORAPLANE_PROMETHEUS_IMAGE": PROMETHEUS,
    "LORAPLANE_ENGINE_IMAGE": ENGINE,
}
OURS = ("etcd-1", "admin-1", "sidecar-1", "engine-1")  # one service for each image
_DEBIAN = f"{PREFIX}/debian:1"
_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates,libnuma1"  # the last for vLLM
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make_stand_ins() -> None:
    """Makes what is missing of them; what was made once is kept below .loraplane."""
    make_base()
    _etcd()
    _prometheus()
    _engine()


def make_base() -> None:
    """Makes what our own images are built on and of; what was made once is kept, too."""
    _debian()
    # As the official image: `python` and `pip` by these names, and a pip that installs.
    _written(
        PYTHON,
        f"FROM {_DEBIAN}\n"
        "RUN ln -s /usr/bin/python3 /usr/local/bin/python && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED\n",
    )
    _wheels()


def _debian() -> None:
    archive = FOLDER / "debian.tar"
    if not archive.exists():
        part = archive.with_suffix(".part.tar")
        run(
            ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(part)],
            timeout=1200,
        )
        part.rename(archive)
    if not _exists(_DEBIAN):
        podman("import", "--quiet", "--change", f"ENV {_PATH}", str(archive), _DEBIAN, timeout=600)


def _etcd() -> None:
    folder = find_etcd().parent
    _written(
        ETCD,
        f"FROM {_DEBIAN}\nCOPY etcd etcdctl /usr/local/bin/\n",
        {name: folder / name for name in ("etcd", "etcdctl")},
    )


def _prometheus() -> None:
    unpacked = FOLDER / "prometheus"
    if not (unpacked / "usr/bin/prometheus").exists():
        unpacked.mkdir(exist_ok=True)
        fetch = "apt-get update -qq && apt-get download -qq prometheus && dpkg-deb --extract prometheus_*.deb ."
        run(["sh", "-c", f"cd {unpacked} && {fetch}"], timeout=600)
    _written(
        PROMETHEUS,
        f"FROM {_DEBIAN}\n"
        "COPY prometheus promtool /bin/\n"
        "RUN install -d -o nobody -g nogroup /prometheus\n"
        "USER nobody\nWORKDIR /prometheus\n"
        'ENTRYPOINT ["/bin/prometheus"]\n'
        'CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]\n',
        {name: unpacked / "usr/bin" / name for name in ("prometheus", "promtool")},
    )


def _engine() -> None:
    """vLLM as `make engine` installed it, in the place where Debian's Python looks."""
    wanted = hashlib.sha256((ROOT / "requirements/engine.txt").read_bytes()).hexdigest()[:12]
    versioned = f"{PREFIX}/vllm:{wanted}"
    if not _exists(versioned):
        (site,) = (ROOT / ".venv-engine/lib").resolve().glob("python3*/site-packages")
        file = _dockerfile("vllm", f"FROM {_DEBIAN}\nCOPY . /usr/local/lib/python3.11/dist-packages/\n")
        podman("build", "--quiet", "--tag", versioned, "--file", str(file), str(site), timeout=1800)
    podman("tag", versioned, ENGINE)


def _wheels() -> None:
    """What pip installs in our images, fetched by the host's pip: a build then needs no network and no settings."""
    folder, pip = FOLDER / "wheels", COMPOSE.with_name("pip")
    locks = ("requirements/build.txt", "requirements/control-plane.txt")
    wanted = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in locks))
    mark = folder / wanted.hexdigest()
    if mark.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    named = [word for name in locks for word in ("--requirement", name)]
    arguments = ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--dest", str(folder), *named]
    run([str(pip), "download", *arguments], timeout=1200)
    mark.touch()


def build_ours(files: list[str], **settings: str) -> None:
    """Builds the images of compose.yaml by its own build sections, as `docker compose build` does."""
    compose(files, f"--podman-build-args={' '.join(offline())}", "build", *OURS, timeout=1800, **settings)


def offline() -> list[str]:
    """Arguments of `podman build` by which pip finds everything in a folder of the host."""
    (FOLDER / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    mounts = (f"{FOLDER / 'wheels'}:/wheels:ro", f"{FOLDER / 'pip.conf'}:/etc/pip.conf:ro")
    return [*(word for mount in mounts for word in ("-v", mount)), "--network", "none"]


def compose(files: list[str], *arguments: str, timeout: float = 600, **settings: str) -> str:
    """Runs podman-compose on files of compose/, or others."""
    named = [word for file in files for word in ("--file", file)]
    command = [str(COMPOSE), "--podman-path", str(FOLDER / "podman"), "--project-name", PROJECT, *named, *arguments]
    return run(command, timeout=timeout, **VARIABLES, **settings)


def _exists(tag: str) -> bool:
    return tag in podman("images", "--format", "{{.Repository}}:{{.Tag}}").split()


def _written(tag: str, text: str, files: dict[str, Path] | None = None) -> None:
    """Builds a Dockerfile of that text beside these files."""
    file = _dockerfile(tag.rpartition("/")[2].partition(":")[0], text)
    for name, path in (files or {}).items():
        shutil.copy2(path, file.parent / name)
    build(tag, file.parent)


def _dockerfile(name: str, text: str) -> Path:
    folder = FOLDER / "contexts" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Dockerfile").write_text(text)
    return folder / "Dockerfile"
