"""What an agent on SWE-ReX does, by a deployment whose commands are actions. Needs: pip install swe-rex

    python swerex_deployment.py 127.0.0.1:50061
"""

import asyncio
import sys

from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest, WriteFileRequest

from treadle.adapters.swerex import TreadleDeployment


async def main(target: str) -> None:
    deployment = TreadleDeployment(target)
    await deployment.start()
    try:
        runtime = deployment.runtime
        await runtime.write_file(WriteFileRequest(path="project/hello.py", content="print('hello')"))
        await runtime.create_session(CreateBashSessionRequest())
        await runtime.run_in_session(BashAction(command="cd project && export NAME=world"))
        said = await runtime.run_in_session(BashAction(command="python3 hello.py; echo $NAME in ${PWD##*/}"))
        print(said.output)
        print(await runtime.execute(Command(command=["ls", "project"])))
    finally:
        await deployment.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
