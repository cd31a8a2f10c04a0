"""The programs `fedrift` and `python FILE` without their start.

Each runs in a process of its own, forked from one that has imported all of fedrift and done nothing
else: what it finds, says, writes and ends with is what it would be, a second of imports apart.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
NAMES = ("fedrift", "python")
LONGEST = 1 << 20  # bytes of a request

# Hands itself to the server: its words, folder, environment and open files.
SHIM = """#!{python} -IS
import json, os, socket, sys
words = sys.argv[1:]
real = {bin!r} + "/" + os.path.basename(sys.argv[0])
if real.endswith("/python"):
    if not words or not words[0].endswith(".py"):
        os.execv(real, [real, *words])
else:
    words.insert(0, real)
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = dict(words=words, cwd=os.getcwd(), env=dict(os.environ))
socket.send_fds(server, [b"."], [0, 1, 2])
server.sendall(json.dumps(request).encode())
server.shutdown(socket.SHUT_WR)
sys.exit(int(server.recv(9)))
"""


@contextmanager
def served(folder: Path) -> Generator[Path]:
    """A folder to put first in PATH: without a fork server, that of the programs themselves."""
    if sys.platform != "linux":
        yield BIN
        return
    address = str(folder / "socket")
    for name in NAMES:
        shim = folder / name
        shim.write_text(SHIM.format(python=sys.executable, bin=str(BIN), address=address))
        shim.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        number = str(listener.fileno())
        command = [sys.executable, "-m", "tests.support.programs", number]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment | {"MPLBACKEND": "agg"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        ) as server:
            yield folder
            assert server.stdin is not None
            server.stdin.close()  # at which it ends


def import_all(*more: str) -> None:
    """What commands import, so that forked processes need not."""
    import fedrift

    for module in pkgutil.walk_packages(fedrift.__path__, "fedrift."):
        if not module.name.startswith("fedrift.federation"):
            with suppress(ImportError, fedrift.InputError):  # of an extra that is not here
                importlib.import_module(module.name)
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg", *more):
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # pages that are not written need not be copied


def serve(listener: socket.socket) -> None:
    """Until nobody is there who might ask."""
    import_all()
    path = sys.path[1:]  # without the folder that this module was found in
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        asking, _ = listener.accept()
        if not os.fork():
            listener.close()
            os._exit(answered(asking, path))
        asking.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def answered(asking: socket.socket, path: Sequence[str]) -> int:
    """Runs what is asked for in a process of its own and says how it ended."""
    _, files, _, _ = socket.recv_fds(asking, 1, 3)
    request = json.loads(b"".join(iter(lambda: asking.recv(LONGEST), b"")))
    child = os.fork()
    if not child:
        asking.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os._exit(run(request["words"], request["cwd"], request["env"], path))
    _, status = os.waitpid(child, 0)
    asking.sendall(str(os.waitstatus_to_exitcode(status) % 256).encode())
    return 0


def run(words: Sequence[str], cwd: str, env: Mapping[str, str], path: Sequence[str]) -> int:
    """A file of Python as the program of this process; its exit code."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    beside = os.path.dirname(os.path.abspath(words[0]))
    more = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:] = [beside, *more, *path]
    sys.argv[:] = words
    code: object = 0
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if isinstance(code, str):
        print(code, file=sys.stderr)
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
