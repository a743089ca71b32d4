"""Serves an engine until standard input ends: `python -m treadle_torch`, whose first line of input is its configuration.

The client that started it holds the other end, so the process ends with it, however that dies. Where the engine has several
processes, this one starts the others in the same way; their further lines are the jobs that it tells them.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import threading
from typing import Any


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    # What is imported stays: to look for garbage among it meanwhile is a fifth of the start.
    gc.disable()
    # Nothing is downloaded, whatever a model's folder names.
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["OMP_NUM_THREADS"] = str(settings["threads"])
    # Processes of an engine have places of their own, whatever started the first.
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    # Elsewhere others could put in what is run.
    own = os.path.join(os.path.expanduser("~"), ".cache", "treadle", "torchinductor")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", own)
    # What processes of an engine say to each other stays on the machine.
    loopback = "lo" if sys.platform == "linux" else "lo0"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", _nccl_interface(settings) or loopback)
    if settings["rank"] == 0:
        _lead(settings)
    else:
        _follow(settings)


def _nccl_interface(settings: dict[str, Any]) -> str | None:
    """Where weights go to another node over NCCL, which takes one for all that it does."""
    links = settings["collective"]
    if links is None or links["backend"] != "nccl":
        return None
    from .weight_link import LinkSettings, interface_of

    return interface_of(LinkSettings(**links).own)


def _lead(settings: dict[str, Any]) -> None:
    followers: Any = None
    store: Any = None

    def end_with_input() -> None:
        sys.stdin.read()
        if followers is not None:
            followers.end()
        shutil.rmtree(settings["folder"], ignore_errors=True)
        if store is not None:
            store.close()
        os._exit(0)

    threading.Thread(target=end_with_input, daemon=True).start()

    from .errors import Refusal
    from .followers import REFUSED, Followers, end_with_parent
    from .server import serve
    from .weight_files import Root, Store
    from .weight_link import LinkSettings, check_backend
    from .weight_transfer import Receivers, Senders

    end_with_parent(signal.SIGCONT)  # one that is stopped goes on, sees the end of its input, and cleans up
    try:
        if settings["processes"] > 1:
            followers = Followers(settings, settings["processes"])
            engine = _engine(settings, tell=followers.tell, broken=followers.broken)
        else:
            engine = _engine(settings)
        if settings["collective"]:
            check_backend(settings["collective"]["backend"], engine.placement.device)
    except Refusal as refusal:
        if followers is not None:
            followers.end()
        print(_told(refusal), flush=True)
        os._exit(REFUSED)
    files = settings["weight_files"]
    if files["store"] is not None:
        store = Store(**files["store"])
    roots = [Root(**each) for each in files["roots"]]
    links = settings["collective"] and LinkSettings(**settings["collective"])
    device = engine.placement.device
    senders = Senders(store, links, device) if links and store is not None else None
    receivers = Receivers(links, device) if links else None
    server = serve(
        engine, settings["address"], settings["token"], store, roots, senders, receivers, is_shared=settings["shared"], followers=followers
    )
    print(json.dumps({"ready": True}), flush=True)
    server.wait_for_termination()


def _follow(settings: dict[str, Any]) -> None:
    from .errors import Refusal
    from .followers import REFUSED, end_with_parent, follow, read_jobs, say_alive

    end_with_parent()
    jobs = read_jobs(sys.stdin)
    try:
        engine = _engine({**settings, "loaded": False})
    except Refusal as refusal:
        print(_told(refusal), flush=True)
        os._exit(REFUSED)
    say_alive(settings["silence_s"])
    follow(engine, jobs)


def _told(refusal: Any) -> str:
    return json.dumps({"code": refusal.code, "message": str(refusal)})


def _engine(settings: dict[str, Any], **jobs: Any) -> Any:
    import torch

    from .adapters import AdapterOptions
    from .device import place
    from .engine import Engine
    from .errors import Refusal
    from .model import ModelOptions, PassOptions, make_model
    from .sharding import Shards
    from .weight_blocks import blocks_of

    torch.set_num_threads(settings["threads"])
    rank, size = settings["rank"], settings["processes"]
    placement = place(settings["device"], settings["dtype"], rank, size)
    passes = PassOptions(checkpoints=settings["checkpoint_activations"], compiles=settings["compile"])
    lora = settings["lora"] and AdapterOptions(**{**settings["lora"], "targets": tuple(settings["lora"]["targets"])})
    model = make_model(ModelOptions(**settings["model"]), placement.dtype, passes, adapter=lora, is_shell=rank > 0)
    rendezvous = os.path.join(settings["folder"], "rendezvous")
    shards = Shards.join(rank, size, rendezvous, settings["timeout_s"], placement)
    parts = [*model.named(), *model.named_buffers()]
    if not shards.agree(str([(name, tuple(each.shape), each.dtype) for name, each in parts])):
        raise Refusal(
            "config.invalid",
            f"the weights in engine.path '{settings['model']['path']}' are not those that its config.json says, as where it ties "
            "the output embedding to the input's and there are two of them; correct config.json, or set engine.shards to 1",
        )
    engine = Engine(
        model,
        settings["slots"],
        placement,
        uses_graphs=settings["cuda_graphs"],
        is_loaded=settings["loaded"],
        use=settings["use"],
        shards=shards,
        blocks=blocks_of(placement.device) if placement.is_cuda and settings["weight_files"]["on_device"] else None,
        **jobs,
    )
    gc.freeze()
    gc.enable()
    return engine


if __name__ == "__main__":
    main()
