"""What verl does with a tool, by hand: an episode of two calls and its reward.

    python verl_tool.py 127.0.0.1:50061
"""

import asyncio
import sys
from types import SimpleNamespace

from treadle.adapters.verl import SandboxTool


async def main(target: str) -> None:
    reward = {"command": ["sh", "-c", "grep -q 42 answer.txt"], "cpu": [1, 4], "serial_share": 0.1}
    tool = SandboxTool({"type": "native", "target": target, "keep": True, "reward": reward})
    # verl makes an instance for every call; the request is the episode, whose files stay.
    episode = SimpleNamespace(request_id="episode-1")
    for command in ["echo 42 > answer.txt", "cat answer.txt"]:
        instance, _ = await tool.create(create_kwargs={"files": {"task.md": "write the answer"}})
        answer, _, metrics = await tool.execute(instance, {"command": command}, agent_data=episode)
        print(f"{command!r} printed {answer.text!r}, exit code {metrics['exit_code']}")
        print("reward", await tool.calc_reward(instance, agent_data=episode))
        await tool.release(instance)
    await tool.close_request(episode.request_id)
    await tool.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
