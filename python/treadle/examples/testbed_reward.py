"""The tests of a task, which are root's in /testbed, as the reward of a solution: on as many cores as they gain from.

    python testbed_reward.py 127.0.0.1:50061 solution_folder .treadle/actions/pytest.json

The service shows the folder to its sandboxes: `cgroup: { folders: { /testbed: /srv/task } }`, or an image has it. The file is what
`npx treadle actions profile` measured of the command: how long it takes, and how it gains from cores. The command is such as

    sh -c 'export PYTHONPATH=$PWD/solution; cd /testbed && exec python3 -m pytest -p no:cacheprovider -n {parallel}'
"""

import sys

from treadle import Actions, Between, Profile

target, solution, stored = sys.argv[1:]
suite = Profile.load(stored)
with Actions(target) as actions, actions.open_trajectory() as trajectory:
    trajectory.upload(solution, "solution")
    reward = trajectory.run(
        suite.command, cpu=Between(1, max(suite.elasticity.by_units)), elasticity=suite.elasticity,
        duration=suite.duration, kind=suite.kind, timeout_seconds=600,
    )
print(reward.text, f"{reward.allocation['cpu']:.0f} cores: {reward.why}", sep="\n")
sys.exit(reward.exit_code)
