"""A Ray cluster loses nodes, and the choices are those in memory.

The nodes are raylets on this computer. This module is also the program that uses them,
because a process reads Ray's settings only once.
"""

import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from botorch_bkb.arms import ArrayArms
from botorch_bkb.posteriors import ray_shards, shards
from botorch_bkb.posteriors.shards import ArmShard
from tests.posteriors.test_ray_shards import PATIENCE, run_python
from tests.posteriors.test_shards import (
    assert_same,
    BANDITS,
    BLOCK_SIZE,
    campaign,
    table,
)


NODE = {"num_cpus": 2, "node_ip_address": "127.0.0.1"}
# A lost node is noticed after two seconds, by default after about fifteen. A slow node
# is not taken for lost: the time limit of a check is the default.
HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}


class Losing:
    """A bandit's stand-in on a cluster: a node is lost before ask 2, another in ask 3.

    Two workers need a CPU each, and the head has one for them until ask 3. Then it has
    two. ``places`` has the nodes of the workers after each ask, 0 for the head.
    """

    def __init__(self, cluster, folder):
        import ray

        self.cluster, self.started = cluster, folder / "started"
        self.occupant = ray.remote(num_cpus=1)(Occupant).remote()
        ray.get(self.occupant.__ray_ready__.remote(), timeout=PATIENCE)
        self.nodes = [cluster.head_node, cluster.add_node(**NODE)]
        self.places = []
        self.arms = ArrayArms(folder / "arms.npy").on_ray(2)
        self.bandit = BANDITS["gpbucb"](self.arms)

    def __getattr__(self, name):
        return getattr(self.bandit, name)

    def ask(self, *sizes, **options):
        ask = self.bandit.ask
        if len(self.places) == 1:
            self.nodes.append(self.cluster.add_node(**NODE))
            self.lose(1)
        if len(self.places) == 2:
            ask = self.ask_and_lose
        asked = ask(*sizes, **options)
        ids = [node.node_id for node in self.nodes]
        self.places.append(sorted(ids.index(place) for place, _ in self.workers()))
        return asked

    def ask_and_lose(self, *sizes, **options):
        """Lose a node when its worker has begun to choose arms."""
        import ray

        ray.kill(self.occupant)
        ask, number = ray_shards.RayShards.ask, len(self.nodes) - 1
        lost, pids, started = self.nodes[number].node_id, self.workers(), self.started

        def held(shards, method, *args):
            if method is ArmShard.largest_bounds:
                method = Held(method, lost, started)
            return ask(shards, method, *args)

        def lose():
            while not started.exists():
                time.sleep(0.01)
            self.lose(number, pids)

        thread = threading.Thread(target=lose, daemon=True)
        thread.start()
        ray_shards.RayShards.ask = held
        asked = self.bandit.ask(*sizes, **options)
        ray_shards.RayShards.ask = ask
        thread.join()
        return asked

    def lose(self, number, workers=None):
        """Kill a node and its worker at once, as if the machine were switched off."""
        workers, node = workers or self.workers(), self.nodes[number]
        [pid] = [pid for place, pid in workers if place == node.node_id]
        self.cluster.remove_node(node, allow_graceful=False)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def workers(self):
        """Return the node and the process of each worker."""
        import ray

        actors = self.arms.workers.pool.actors
        place = lambda self: (node_id(), os.getpid())  # noqa: E731
        calls = [actor.__ray_call__.remote(place) for actor in actors]
        return ray.get(calls, timeout=PATIENCE)


class Occupant:
    """It needs a CPU."""


class Held:
    """A question that a worker on one node never finishes."""

    def __init__(self, method, node, started):
        self.method, self.node, self.started = method, node, started

    def __call__(self, part, *args):
        if node_id() == self.node:
            self.started.touch()
            time.sleep(PATIENCE)
        return self.method(part, *args)


def node_id():
    import ray

    return ray.get_runtime_context().get_node_id()


def main(folder):
    """Save a campaign's choices and predictions, and the nodes of the workers."""
    import ray
    from ray.cluster_utils import Cluster

    shards.BLOCK_SIZE = BLOCK_SIZE
    torch.set_num_threads(1)
    np.save(folder / "arms.npy", table().numpy())
    head = NODE | {"include_dashboard": False, "_system_config": HEALTH}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(cluster.address, log_to_driver=False)
    bandit = Losing(cluster, folder)
    run = campaign(bandit, num_asks=3)
    torch.save((run, bandit.places), folder / "run.pt")
    bandit.arms.workers.close()
    ray.shutdown()
    cluster.shutdown()


def test_nodes_are_lost_before_and_in_an_ask_and_the_choices_are_the_same(tmp_path):
    """The predictions are of all results, so none of these is lost."""
    # Ray's sockets need a short path, and its home a file that keeps it from looking
    # for a cloud.
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as home:
        (Path(home) / "ray_bootstrap_config.yaml").write_text("{}\n")
        environment = ray_shards.SETTINGS | {"HOME": home, "RAY_TMPDIR": home}
        program = "-m", "tests.posteriors.test_ray_cluster"
        done = run_python(*program, tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    run, places = torch.load(tmp_path / "run.pt")
    assert places == [[0, 1], [0, 2], [0, 0]]
    assert_same(run, campaign(BANDITS["gpbucb"](table()), num_asks=3))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
