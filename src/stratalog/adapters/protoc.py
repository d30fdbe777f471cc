"""Compile .proto files by protoc, in a process of its own.

In: files' texts. Out: a FileDescriptorSet. A schema comes from strangers: it is compiled beside this process, in a
directory of its own, within bounds.
"""

import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

__all__ = ["compile_proto"]

_TIMEOUT_S: Final = 20
_MAIN: Final = "main__.proto"


def compile_proto(text: str, references: Mapping[str, str]) -> bytes:
    """Return the compiled files, the main one last; `references` are the files that it imports, by name.

    Raises ImportError without the package grpcio-tools, ValueError for what protoc refuses.
    """
    if find_spec("grpc_tools") is None:
        raise ImportError("grpcio-tools", name="grpcio-tools")
    with TemporaryDirectory(prefix="strata-protoc-") as name:
        place = Path(name)
        for path, content in {**references, _MAIN: text}.items():
            file = (place / path).resolve()
            if not file.is_relative_to(place.resolve()):
                raise ValueError(f"a file named {path!r}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
        out = place / "compiled"
        words = ["-I", name, "--include_imports", f"--descriptor_set_out={out}", _MAIN]
        # grpc_tools.protoc adds protoc's own files (google/protobuf/…) to the path.
        try:
            done = subprocess.run(  # noqa: S603 - fixed words, and files of its own directory
                [sys.executable, "-m", "grpc_tools.protoc", *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
                cwd=name,
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"protoc took more than {_TIMEOUT_S} s") from None
        if done.returncode != 0:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise ValueError(lines[0] if lines else f"protoc ended with {done.returncode}")
        return out.read_bytes()
