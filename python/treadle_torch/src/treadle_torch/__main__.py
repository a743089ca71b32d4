"""Serves an engine until standard input ends: `python -m treadle_torch`, whose first line of input is its configuration.

The client that started it holds the other end, so the process ends with it, however that dies.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading


def main() -> None:
    settings = json.loads(sys.stdin.readline())

    def end_with_input() -> None:
        sys.stdin.read()
        shutil.rmtree(settings["folder"], ignore_errors=True)
        if store is not None:
            store.close()
        os._exit(0)

    store = None
    threading.Thread(target=end_with_input, daemon=True).start()
    # Nothing is downloaded, whatever a model's folder names.
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["OMP_NUM_THREADS"] = str(settings["threads"])

    import torch

    from .device import place
    from .engine import Engine
    from .errors import Refusal
    from .model import ModelOptions, PassOptions, make_model
    from .server import serve
    from .weight_files import Root, Store

    torch.set_num_threads(settings["threads"])
    try:
        placement = place(settings["device"], settings["dtype"])
        passes = PassOptions(checkpoints=settings["checkpoint_activations"], compiles=settings["compile"])
        engine = Engine(
            make_model(ModelOptions(**settings["model"]), placement.dtype, passes),
            settings["slots"],
            placement,
            uses_graphs=settings["cuda_graphs"],
            is_loaded=settings["loaded"],
        )
    except Refusal as refusal:
        print(json.dumps({"code": refusal.code, "message": str(refusal)}), flush=True)
        sys.exit(2)
    files = settings["weight_files"]
    if files["store"] is not None:
        store = Store(**files["store"])
    roots = [Root(**each) for each in files["roots"]]
    server = serve(engine, settings["address"], settings["token"], store, roots)
    print(json.dumps({"ready": True}), flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
