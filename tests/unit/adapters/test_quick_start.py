"""The modules that a server has imported when it can serve."""

import subprocess
import sys

CODE = """
import sys
from stratalog.adapters.quick_start import start_quickly
start_quickly()
import stratalog.process
from crc32c import crc32c
assert crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789") == 0xE3069283
print(*sys.modules)
"""
UNNEEDED = {
    "argparse",
    "difflib",
    "email",
    "http.client",
    "importlib.metadata",
    "pygments",
    "rich",
    "shutil",
    "typing_extensions",
    "zipfile",
    "stratalog.adapters.directory_store",
}


def test_a_server_imports_no_command_line_no_colours_and_no_bucket() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "stratalog.node" in modules
    assert not modules & UNNEEDED


def test_an_imported_package_is_not_replaced() -> None:
    code = f"import crc32c as whole\n{CODE}assert sys.modules['crc32c'] is whole"
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
