"""Answers calls of one Python function: a JSON object a line in, one out, each call in a fork with a deadline.

Arguments: the function as `path/to/file.py:name`, the deadline of a call in seconds, and how many calls run at once. The
first line out says that the function is there, or why not; then `{"id", "score"}`, `{"id", "error"}` or `{"id", "late"}` for
every `{"id", "arguments"}`. A fork ends at its deadline even where this process has died.
"""

import importlib.util
import json
import os
import selectors
import signal
import sys
import time
import traceback

TAIL = 2000


def load(target):
    path, _, name = target.rpartition(":")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location("treadle_reward", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["treadle_reward"] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise AttributeError(f"'{path}' has no function '{name}'")
    return function


def run(function, arguments, out, deadline):
    """In the fork, whose group is its own: what the function starts ends with it."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, deadline + 1)
    try:
        score = float(function(**arguments))
        answer = {"score": score} if score - score == 0 else {"error": f"returned {score}"}
    except BaseException:
        answer = {"error": traceback.format_exc()[-TAIL:]}
    with os.fdopen(out, "w") as pipe:
        json.dump(answer, pipe)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main():
    target, deadline, at_once = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the function prints belongs to the log

    def reply(message):
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        function = load(target)
    except BaseException:
        reply({"error": traceback.format_exc()[-TAIL:]})
        return
    reply({"ready": True})

    os.set_blocking(0, False)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    waiting, running, read = [], {}, b""
    is_open = True

    def start(call):
        out, into = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.close(out)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            run(function, call["arguments"], into, deadline)
        os.close(into)
        selector.register(out, selectors.EVENT_READ)
        running[out] = {"id": call["id"], "pid": pid, "until": time.monotonic() + deadline, "answer": b""}

    def end(out, outcome):
        call = running.pop(out)
        selector.unregister(out)
        os.close(out)
        for kill in (os.killpg, os.kill):  # the group may not be there yet
            try:
                kill(call["pid"], signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        _, status = os.waitpid(call["pid"], 0)
        if outcome is None:
            try:
                outcome = json.loads(call["answer"])
            except ValueError:
                outcome = {"error": f"the function's process ended with status {os.waitstatus_to_exitcode(status)}"}
        reply({"id": call["id"], **outcome})

    while is_open:
        while waiting and len(running) < at_once:
            start(waiting.pop(0))
        next_end = min((call["until"] for call in running.values()), default=None)
        for key, _ in selector.select(None if next_end is None else max(0, next_end - time.monotonic())):
            if key.fd == 0:
                chunk = os.read(0, 1 << 20)
                is_open = len(chunk) > 0
                *lines, read = (read + chunk).split(b"\n")
                waiting.extend(json.loads(line) for line in lines)
            else:
                chunk = os.read(key.fd, 1 << 16)
                running[key.fd]["answer"] += chunk
                if not chunk:
                    end(key.fd, None)
        for out in [out for out, call in running.items() if call["until"] <= time.monotonic()]:
            end(out, {"late": True})
    for call in running.values():
        try:
            os.killpg(call["pid"], signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            os.kill(call["pid"], signal.SIGKILL)


main()
