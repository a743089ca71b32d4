"""An episode of SkyRL's loop, with two turns in place of a model's.

    python skyrl_environment.py 127.0.0.1:50061
"""

import sys

from treadle.adapters.skyrl import SandboxEnv

turns = ["I try. <shell>python3 -c 'print(6 * 7)' | tee answer.txt</shell>", "That is it. <done>"]


def main(target: str) -> None:
    environment = SandboxEnv(
        {"target": target, "max_turns": 4},
        extras={"reward_spec": {"command": ["grep", "-q", "42", "answer.txt"]}, "files": {"task.md": "What is 6 * 7?"}},
    )
    environment.init([{"role": "user", "content": "What is 6 * 7?"}])
    for turn in turns:
        step = environment.step(turn)
        print(f"observations {step['observations']}, reward {step['reward']}, done {step['done']}")
    environment.close()


if __name__ == "__main__":
    main(sys.argv[1])
