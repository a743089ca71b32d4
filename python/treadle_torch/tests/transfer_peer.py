"""One side of a link in a process of its own, for tests: a sender, or a receiver. Reads commands from its standard input, and answers each with a line.

    python transfer_peer.py send ROOT TIMEOUT [SECONDS OF EACH BUCKET]
    python transfer_peer.py receive TIMEOUT [SECONDS OF EACH BUCKET]
"""

import base64
import json
import sys
import threading
import time
from dataclasses import asdict

import torch
from treadle_torch import weight_transfer
from treadle_torch.errors import Refusal
from treadle_torch.weight_files import Store, Tensor, Ticket
from treadle_torch.weight_link import LinkSettings, Place
from treadle_torch.weight_transfer import Receivers, Senders

BUCKET_BYTES = 2**16
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}


def drawn(seed: int) -> list[tuple[str, torch.Tensor]]:
    """Tensors of any sizes and both types, in any order."""
    draw = torch.Generator().manual_seed(seed)
    number = lambda most: int(torch.randint(most, (1,), generator=draw))  # noqa: E731
    named = []
    for index in range(1 + number(9)):
        shape = [number(200) for _ in range(number(3))]
        dtype = (torch.float32, torch.bfloat16)[number(2)]
        named.append((f"tensor-{index}", torch.randn(shape, generator=draw).to(dtype)))
    return named


def settings_of(timeout_s: float) -> LinkSettings:
    return LinkSettings("gloo", "127.0.0.1", "127.0.0.1", timeout_s)


def ticket_of(given: dict) -> Ticket:
    tensors = tuple(Tensor(each["name"], tuple(each["shape"]), each["dtype"], each["crc32"]) for each in given["tensors"])
    return Ticket(given["policy_version"], given["store"], given["nonce"], given["folder"], tensors)


def place_of(given: dict) -> Place:
    return Place(given["link"], given["host"], given["port"], base64.b64decode(given["secret"]))


def told(place: Place) -> dict:
    return {**asdict(place), "secret": base64.b64encode(place.secret).decode()}


def _slow(seconds: float) -> None:
    for kind, name in ((weight_transfer._Mapped, "part"), (weight_transfer.HostStaging, "came")):
        act = getattr(kind, name)
        setattr(kind, name, lambda *given, act=act: (time.sleep(seconds), act(*given))[1])


def main() -> None:
    torch.set_num_threads(1)
    weight_transfer.BUCKET_BYTES = BUCKET_BYTES
    role, *words = sys.argv[1:]
    root = words.pop(0) if role == "send" else ""
    timeout_s = float(words.pop(0))
    if words:
        _slow(float(words.pop(0)))
    cpu = torch.device("cpu")
    store = Store(root, "treadle-run-1-weights") if role == "send" else None
    senders = Senders(store, settings_of(timeout_s), cpu) if store else None
    receivers = Receivers(settings_of(timeout_s), cpu)
    version = 0
    for line in sys.stdin:
        command = json.loads(line)
        answer: object = None
        if "publish" in command:
            version += 1
            answer = asdict(store.write(version, drawn(command["publish"])))
        elif "zeros" in command:
            version += 1
            answer = asdict(store.write(version, [("zeros", torch.zeros(command["zeros"]))]))
        elif "offer" in command:
            answer = told(senders.offer(command["offer"]))
        elif "count" in command:
            answer = {"links": (senders or receivers).num_links, "threads": threading.active_count()}
        elif "receive" in command:
            print(json.dumps("begun"), flush=True)
            try:
                place = place_of(command["place"])
                receivers.join(place)
                found = receivers.receive(place.link, ticket_of(command["receive"]))
                answer = {"sums": [float(each.double().sum()) for each in found]}
            except Refusal as refusal:
                answer = {"code": refusal.code, "message": str(refusal)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
