"""What several hosts have to prove: they write the set of one process, whatever happens to the network and to them."""

import sys
import time
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path

from tests.benchmarks.cluster_kills import TASK, num_files
from tests.hosts.host import Host
from tests.hosts.trial import BIN, CUT_S, Check, Hosts, Measured, Trial, cut

IN_THE_MIDDLE = 20  # files of a set, which has more than a hundred
FRAMES_IN_THE_MIDDLE = 400  # of a push or a pull, which needs thousands
RAY_PORT, FILES_PORT, S3_PORT = 6379, 2022, 5000


class RayCluster:
    """A cluster with a driver on the first host and a worker on each of two others, which have only the software."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts

    @cached_property
    def workers(self) -> list[Host]:
        """Starts the cluster. Returns the hosts of its workers."""
        head = ("--head", f"--port={RAY_PORT}", "--num-cpus=0", "--include-dashboard=false")
        start_ray(self.hosts.first, *head)
        workers = [self.hosts.bare() for _ in range(2)]
        for worker in workers:
            start_ray(worker, f"--address={self.hosts.first.address}:{RAY_PORT}", "--num-cpus=1")
        return workers

    def dump(self, store: str, meanwhile: Callable[[], object] = lambda: None, is_slow: bool = False) -> Measured:
        """Dumps on the cluster, with something that happens in the middle, or on a slow network."""
        assert self.workers
        driver, network, folder = self.hosts.first, self.hosts.network, self.hosts.first.path(self.hosts.world)
        ray = {"ray": f"{driver.address}:{RAY_PORT}", "ray_workers": 2}
        with network.disturbed(is_slow):
            trial = Trial(driver, self.hosts.dump_command(store, **ray))
            commands = trial.disturbed(lambda: num_files(folder, store) >= IN_THE_MIDDLE, meanwhile).commands()
        return self.hosts.compared(folder / store / TASK, commands)

    def cut(self) -> None:
        """Unplugs a worker for some seconds."""
        cut(self.workers[1])

    def cut_driver(self) -> None:
        """Unplugs the driver for some seconds."""
        cut(self.hosts.first)

    def lose(self) -> None:
        """Loses a worker for good."""
        self.workers[1].die()


def start_ray(host: Host, *flags: str) -> None:
    """Makes a host a part of a cluster."""
    host.run(BIN / "ray", "start", f"--node-ip-address={host.address}", "--object-store-memory=100000000", *flags)


class Jobs:
    """Two jobs of a launcher on two hosts, which see the folder of a third one through sshfs."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts, self.shared = hosts, hosts.world / "shared"

    @cached_property
    def server(self) -> Host:
        """Starts the host that has the folder."""
        server = self.hosts.bare()
        server.path(self.shared).mkdir(parents=True)
        self.serve(server)
        return server

    def serve(self, server: Host) -> None:
        """Starts the server of the folder."""
        started = server.start(sys.executable, "-m", "tests.hosts.files", FILES_PORT)
        assert started.stdout is not None
        self._group = int(started.stdout.readline())

    def dump(self, store: str, meanwhile: Callable[[Host], object]) -> Measured:
        """Dumps in two jobs, with something that happens to the host of the second. A last command verifies the set."""
        hosts, written = [self.hosts.new() for _ in range(2)], self.server.path(self.shared)
        for host in hosts:
            host.path(self.shared).mkdir()
            options = ("-o", f"directport={FILES_PORT},reconnect")
            host.run("sshfs", *options, f"{self.server.address}:{self.shared}", self.shared)
        last = self.hosts.dump_command(self.shared / store)
        jobs = [
            Trial(host, [*last, "--shard-index", "auto"], {"SKYPILOT_NODE_RANK": str(rank), "SKYPILOT_NUM_NODES": "2"})
            for rank, host in enumerate(hosts)
        ]
        jobs[1].disturbed(lambda: num_files(written, store) >= IN_THE_MIDDLE, lambda: meanwhile(hosts[1]))
        commands = sum(1 if host.is_dead else job.commands() for host, job in zip(hosts, jobs, strict=True))
        commands += Trial(hosts[0], last).commands()
        return self.hosts.compared(written / store / TASK, commands)

    def restart(self, _: Host) -> None:
        """Ends the server of the folder with all connections, and starts it again."""
        self.server.run("kill", "-9", "--", f"-{self._group}")
        time.sleep(CUT_S)
        self.serve(self.server)


class Sharing:
    """A push to an object store on a host of its own, and a pull from there to another host."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts

    def push_and_pull(self) -> Measured:
        """Pushes and pulls on a slow network, and unplugs the store for some seconds in the middle of both."""
        assert self.hosts.expected
        store, receiver, network = self.hosts.bare(), self.hosts.bare(), self.hosts.network
        # It writes a line for every request, which nobody reads.
        s3 = store.start("sh", "-c", f"exec {BIN}/moto_server -H {store.address} -p {S3_PORT} >/dev/null 2>&1")
        url = f"http://{store.address}:{S3_PORT}"
        access = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "a"}
        make = "import s3fs; s3fs.S3FileSystem().mkdir('sets')"
        receiver.run(sys.executable, "-c", make, environment=access)
        pulled = self.hosts.world / "pulled"
        push = ["push", TASK, f"s3://sets/{TASK}", "--store", str(self.hosts.world / "plain")]
        pull = ["pull", f"s3://sets/{TASK}", "--store", str(pulled)]
        commands = 0
        with network.disturbed(True):
            for host, arguments in ((self.hosts.first, push), (receiver, pull)):
                until = network.sent + FRAMES_IN_THE_MIDDLE
                trial = Trial(host, [str(BIN / "distill"), *arguments], access)
                commands += trial.disturbed(partial(network.has_sent, until), partial(cut, store)).commands()
        s3.kill()
        return self.hosts.compared(receiver.path(pulled / TASK), commands)


def checks(world: Path) -> Iterator[tuple[str, Check]]:
    """Yields the checks by name, in the order in which they must run: a lost host does not come back."""
    hosts = Hosts(world)
    ray, jobs = RayCluster(hosts), Jobs(hosts)
    yield "Ray: two hosts with workers", partial(ray.dump, "calm")
    yield "Ray: 20 ± 5 ms and 1 % of packets lost", partial(ray.dump, "slow", is_slow=True)
    yield f"Ray: a worker's host unplugged for {CUT_S} s", partial(ray.dump, "cut", ray.cut)
    yield f"Ray: the driver's host unplugged for {CUT_S} s", partial(ray.dump, "driver", ray.cut_driver)
    yield "Ray: a worker's host lost for good", partial(ray.dump, "lost", ray.lose)
    yield f"jobs: a host unplugged for {CUT_S} s", partial(jobs.dump, "cut", cut)
    yield f"jobs: the store's server away for {CUT_S} s", partial(jobs.dump, "restarted", jobs.restart)
    yield "jobs: a host lost for good", partial(jobs.dump, "lost", Host.die)
    yield f"push and pull: 20 ± 5 ms, 1 % lost, the store unplugged for {CUT_S} s", Sharing(hosts).push_and_pull
