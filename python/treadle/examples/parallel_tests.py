"""Runs a test suite on as many cores as the scheduler grants. Needs a service: npx treadle actions serve

    python parallel_tests.py 127.0.0.1:50061 tests_folder [image]
"""

import sys

from treadle import Actions, Amdahl, Between


def main(target: str, folder: str, image: str = "") -> int:
    with Actions(target) as actions, actions.open_trajectory(image=image) as trajectory:
        trajectory.upload(folder, "suite")
        # `{parallel}` becomes the cores that it was granted.
        suite = trajectory.run(
            [*(["python3"] if image else [sys.executable]), *"-m pytest -p no:cacheprovider -n {parallel} suite".split()],
            cpu=Between(1, 8),
            elasticity=Amdahl(serial_share=0.05),
            duration=10,
            timeout_seconds=600,
        )
        print(suite.text, f"on {suite.allocation['cpu']:.0f} cores, because: {suite.why}", sep="\n")
        return suite.exit_code if suite.exit_code is not None else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
