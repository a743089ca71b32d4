"""Runs a test suite on as many cores as the scheduler grants.

Needs python3-grpcio, python3-protobuf and protobuf-compiler (Debian), and a server:
    npx treadle actions serve
    /usr/bin/python3 packages/actions/examples/client.py 50061
"""

import importlib
import pathlib
import subprocess
import sys
import tempfile

import grpc

protos = pathlib.Path(__file__).resolve().parents[3] / "protos"
with tempfile.TemporaryDirectory() as generated:
    subprocess.run(
        ["protoc", f"-I{protos}/actions/v1", f"--python_out={generated}", "actions.proto"], check=True
    )
    sys.path.insert(0, generated)
    messages = importlib.import_module("actions_pb2")


class Actions:
    """The service's methods by name; what is generated for a service does no more."""

    def __init__(self, channel: grpc.Channel) -> None:
        service = messages.DESCRIPTOR.services_by_name["Actions"]
        for method in service.methods:
            # Submit is the one method that answers with a stream.
            kind = channel.unary_stream if method.name == "Submit" else channel.unary_unary
            call = kind(
                f"/{service.full_name}/{method.name}",
                request_serializer=getattr(messages, method.input_type.name).SerializeToString,
                response_deserializer=getattr(messages, method.output_type.name).FromString,
            )
            setattr(self, method.name, call)


# Eight independent cases; each takes a while on one core.
SUITE = """
import concurrent.futures, os, sys
def case(n):
    return sum(i * i for i in range(1_500_000)) % 7 == n % 7 or True
if __name__ == "__main__":
    workers = int(float(os.environ["TREADLE_UNITS_CPU"]))
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        passed = sum(pool.map(case, range(8)))
    print(f"{passed} passed on {workers} cores, {len(os.sched_getaffinity(0))} visible")
"""


def main(port: str) -> int:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        actions = Actions(channel)
        trajectory = actions.OpenTrajectory(
            messages.OpenTrajectoryRequest(tenant="example", memory_bytes=512 << 20)
        ).trajectory
        actions.WriteFile(
            messages.WriteFileRequest(trajectory=trajectory, path="suite.py", data=SUITE.encode())
        )
        request = messages.SubmitRequest(
            trajectory=trajectory,
            kind="reward",
            cost={"cpu": messages.Amount(range=messages.UnitRange(min=1, max=8))},
            key="cpu",
            elasticity=messages.Elasticity(amdahl=0.05),
            duration_seconds=4,
            command=["python3", "suite.py"],
            timeout_ms=60_000,
        )
        code = 1
        for event in actions.Submit(request, timeout=120):
            kind = event.WhichOneof("event")
            if kind == "started":
                print("started on cores", list(event.started.cores), "because:", event.started.why)
            elif kind == "output":
                sys.stdout.write(event.output.stdout.decode())
                sys.stderr.write(event.output.stderr.decode())
            elif kind == "finished":
                done = event.finished
                code = done.exit_code if done.HasField("exit_code") else 1
                print(
                    f"{done.status} with {code}: queued {done.queueing_seconds:.3f} s, "
                    f"executed {done.execution_seconds:.3f} s"
                )
        actions.CloseTrajectory(messages.CloseTrajectoryRequest(trajectory=trajectory))
        return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
