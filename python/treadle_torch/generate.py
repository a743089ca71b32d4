"""Writes src/treadle_torch/_generated from packages/engines/protos/engines/v1/engine.proto.

    pip install --no-deps grpcio-tools==1.62.3 && python python/treadle_torch/generate.py

That version's code needs no newer protobuf than 4.25, and runs with every later one. Another folder as argument gets the
files instead.
"""

import pathlib
import subprocess
import sys
import tempfile

package = pathlib.Path(__file__).resolve().parent
protos = package.parents[1] / "packages/engines/protos"
proto = "engines/v1/engine.proto"


def generate(into: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"-I{protos}", f"--python_out={folder}", f"--pyi_out={folder}", proto]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *flags], check=True)
        for made in (pathlib.Path(folder) / proto).parent.iterdir():
            (into / made.name).write_bytes(made.read_bytes())


if __name__ == "__main__":
    generate(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else package / "src/treadle_torch/_generated")
