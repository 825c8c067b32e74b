"""A Kubernetes of one node on this machine: etcd, API server, Docker and kubelet, started and ended by process id.

`scripts/build-kubernetes` makes the programs. Pods share the network of the host.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.schedulers.job_images import packed_image
from tests.schedulers.volcano_stand_in import VolcanoStandIn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROGRAMS = ("kube-apiserver", "kubelet", "pause", "etcd", "dockerd", "docker", "containerd", "runc")
NODE = "node-1"
IMAGE = "cubicml-jobs:1"
_PAUSE = "cubicml-pause:1"
_TOKEN = "scenarios"
_UP_WITHIN_S = 180.0


class KubernetesCluster:
    """A running cluster, as a context. Its ``kubeconfig`` is a file for clients.

    Args:
        programs: folder of the programs.
    """

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="cubicml-k8s-"))  # the path of a socket has 108 characters at most
        self._started: list[subprocess.Popen[bytes]] = []
        self._docker = f"unix://{self._folder}/docker.sock"
        self._server = f"https://127.0.0.1:{_free_port()}"
        self._volcano: VolcanoStandIn | None = None
        self.kubeconfig = self._folder / "kubeconfig"

    def __enter__(self) -> Self:
        try:
            self._write_kubeconfig()
            self._start_api_server()
            self._start_docker()
            self._start_kubelet()
            self._volcano = VolcanoStandIn(str(self.kubeconfig), node=NODE)
            self._volcano.start()
            self._until("the node is not ready", self._volcano.node_is_ready)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._volcano is not None:
            with suppress(Exception):
                self._volcano.delete_all()
            self._volcano.stop()
        for process in reversed(self._started):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            place = line.split(" ")[1]
            if place.startswith(f"{self._folder}/"):
                subprocess.run(["umount", "--lazy", place], check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def version(self) -> str:
        """Return the version of the API server."""
        words = [self._programs / "kube-apiserver", "--version"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    def logs(self) -> str:
        """Return the last lines of each program."""
        files = sorted(self._folder.glob("*.log"))
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def _start_api_server(self) -> None:
        client, peer = (f"http://127.0.0.1:{_free_port()}" for _ in range(2))
        self._start(
            "etcd",
            f"--data-dir={self._folder}/etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )
        key = self._folder / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        (self._folder / "tokens.csv").write_text(f'{_TOKEN},admin,1,"system:masters"\n')
        self._start(
            "kube-apiserver",
            f"--etcd-servers={client}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._server.rpartition(':')[2]}",
            f"--cert-dir={self._folder}/certificates",
            f"--token-auth-file={self._folder}/tokens.csv",
            "--authorization-mode=AlwaysAllow",
            "--service-account-issuer=https://127.0.0.1",
            f"--service-account-signing-key-file={key}",
            f"--service-account-key-file={key}",
            "--service-cluster-ip-range=10.254.0.0/24",
            "--disable-admission-plugins=ServiceAccount",
            "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged",
        )
        words = ["curl", "-skf", "-H", f"Authorization: Bearer {_TOKEN}", f"{self._server}/readyz"]
        self._until("the API server does not answer", lambda: _succeeds(words))

    def _start_docker(self) -> None:
        self._start(
            "dockerd",
            f"--host={self._docker}",
            *(f"--{name}={self._folder}/docker/{name}" for name in ("data-root", "exec-root", "pidfile")),
            *("--iptables=false", "--bridge=none", "--storage-driver=vfs", "--oom-score-adjust=0"),
        )
        self._until("Docker does not answer", lambda: _succeeds([*self._docker_words(), "version"]))
        pause = (self._programs / "pause").read_bytes()
        self._import_image(_PAUSE, ("--change", 'ENTRYPOINT ["/pause"]'), {"pause": pause})
        self._import_image(IMAGE, (), {})

    def _start_kubelet(self) -> None:
        self._start(
            "kubelet",
            f"--kubeconfig={self.kubeconfig}",
            f"--hostname-override={NODE}",
            "--container-runtime=docker",
            f"--docker-endpoint={self._docker}",
            f"--container-runtime-endpoint=unix://{self._folder}/shim.sock",
            f"--experimental-dockershim-root-directory={self._folder}/dockershim",
            f"--pod-infra-container-image={_PAUSE}",
            f"--root-dir={self._folder}/kubelet",
            f"--cert-dir={self._folder}/kubelet-certificates",
            f"--volume-plugin-dir={self._folder}/plugins",
            f"--port={_free_port()}",
            *("--read-only-port=0", "--healthz-port=0", "--anonymous-auth=true", "--authorization-mode=AlwaysAllow"),
            *("--cgroup-driver=cgroupfs", "--cgroups-per-qos=false", "--enforce-node-allocatable="),
            *("--fail-swap-on=false", "--make-iptables-util-chains=false", "--resolv-conf=", "--eviction-hard="),
            "--image-gc-high-threshold=100",
        )

    def _start(self, program: str, *options: str) -> None:
        words = ["setpriv", "--pdeathsig", "TERM", str(self._programs / program), *options]
        environment = {**os.environ, "PATH": f"{self._programs}:{os.environ['PATH']}:/usr/sbin:/sbin"}
        with (self._folder / f"{program}.log").open("wb") as log:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self._started.append(process)

    def _until(self, problem: str, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + _UP_WITHIN_S
        while not holds():
            dead = [str(process.args) for process in self._started if process.poll() is not None]
            if dead or time.monotonic() > end:
                raise RuntimeError(f"{problem}: {dead}\n{self.logs()}")
            time.sleep(0.5)

    def _write_kubeconfig(self) -> None:
        authority = str(self._folder / "certificates" / "apiserver.crt")  # the API server writes it at its start
        named = {"cluster": {"server": self._server, "certificate-authority": authority}}
        context = {"cluster": "here", "user": "admin", "namespace": "default"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", **named}],
            "users": [{"name": "admin", "user": {"token": _TOKEN}}],
            "contexts": [{"name": "here", "context": context}],
            "current-context": "here",
        }
        self.kubeconfig.write_text(json.dumps(config))  # JSON is YAML

    def _docker_words(self) -> list[str]:
        return [str(self._programs / "docker"), "--host", self._docker]

    def _import_image(self, name: str, options: Sequence[str], files: dict[str, bytes]) -> None:
        """Import an image of links, empty folders and a few programs: what jobs run is mounted."""
        words = [*self._docker_words(), "import", *options, "-", name]
        subprocess.run(words, input=packed_image(files), capture_output=True, check=True, timeout=120)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _succeeds(words: Sequence[str]) -> bool:
    return subprocess.run(words, capture_output=True, check=False, timeout=60).returncode == 0
