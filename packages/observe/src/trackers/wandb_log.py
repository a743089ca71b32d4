"""Logs metrics by the W&B client: `{"step", "values"}` a line in, and `{}` or `{"error"}` a line out.

The argument is JSON for `wandb.init`. A last line `{"exit": code}` ends the run there with that code.
"""

import json
import os
import sys


def main():
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the client prints belongs to the log

    def reply(message):
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        import wandb

        run = wandb.init(**json.loads(sys.argv[1]))
    except BaseException as error:
        reply({"error": f"{type(error).__name__}: {error}"})
        return
    reply({})
    for line in sys.stdin:
        message = json.loads(line)
        try:
            if "exit" in message:
                run.finish(exit_code=message["exit"])
            else:
                run.log(message["values"], step=message["step"])
            reply({})
        except Exception as error:
            reply({"error": f"{type(error).__name__}: {error}"})


main()
