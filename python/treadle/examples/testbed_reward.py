"""The tests of a task, which are root's in /testbed, as the reward of a solution: on as many cores as they gain from.

    python testbed_reward.py 127.0.0.1:50061 solution_folder .treadle/actions/pytest.json [image]

The image has the folder, or the service shows it to its sandboxes: `cgroup: { folders: { /testbed: /srv/task } }`. The file is
what `npx treadle actions profile` measured of the command: how long it takes, and how it gains from cores. The command is such as

    sh -c 'export SOLUTION=$PWD/solution; cd /testbed && exec python3 -m pytest -p no:cacheprovider -n {parallel}'

and the suite's conftest.py lets the workers find the solution, after all else: were it in PYTHONPATH, a pytest.py or a
sitecustomize.py of its own would run in place of the suite.

    if "PYTEST_XDIST_WORKER" in os.environ:
        sys.path.append(os.environ["SOLUTION"])
"""

import sys

from treadle import Actions, Between, Profile

target, solution, stored, *image = sys.argv[1:]
suite = Profile.load(stored)
with Actions(target) as actions, actions.open_trajectory(image="".join(image)) as trajectory:
    trajectory.upload(solution, "solution")
    reward = trajectory.run(
        suite.command, cpu=Between(1, max(suite.elasticity.by_units)), elasticity=suite.elasticity,
        duration=suite.duration, kind=suite.kind, timeout_seconds=600,
    )
print(reward.text, f"{reward.allocation['cpu']:.0f} cores: {reward.why}", sep="\n")
sys.exit(reward.exit_code)
