"""Fork server: runs a script again and again, each time in a forked process that has imported what the script needs.

    python -m benchmarks.harness.fork_server train.py

Each line of its input, {"log": FILE, "arguments": [...]}, starts one run; when that has ended, a line of its output
says {"status": ..., "seconds_cpu": ...}. A fork saves the seconds that importing torch and the rest takes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PRELOAD = {"train.py": "structsparse.training.run"}  # what a script imports after it has read its arguments


class ForkServer:
    """The client side of a fork server, which runs as a separate process."""

    def __init__(self, script: Path, environment: Mapping[str, str], errors) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors, "text": True}
        self.process = subprocess.Popen([sys.executable, "-m", __name__, str(script)], env=environment, **pipes)

    def run(self, log: Path, arguments: Sequence[str]) -> dict[str, float]:
        """Run the script with these arguments; its exit status and CPU time."""
        try:
            self.process.stdin.write(json.dumps({"log": str(log), "arguments": list(arguments)}) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        return json.loads(answer) if answer else {"status": self.process.wait() or 1, "seconds_cpu": 0.0}

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """Stop the current run and the server."""
        self.process.terminate()

    def close(self) -> None:
        """End the server once it is idle."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def serve(script: str) -> None:
    """The server: fork for each line of the input. A child leaves this function by running the script."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of the script is no answer
    sys.path.insert(0, str(Path(script).parent))  # as for any script
    if Path(script).name in PRELOAD:
        importlib.import_module(PRELOAD[Path(script).name])
    runpy.run_path(script, run_name="imported")
    ctrl_c = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child receives it too, and handles it
    child = 0

    def stop(signum: int, frame: object) -> None:
        if child:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it has just ended
                os.kill(child, signum)
                os.waitpid(child, 0)
        os._exit(128 + signum)

    signal.signal(signal.SIGTERM, stop)
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until `child` is set
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, ctrl_c)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if child == 0:
            _redirect(answers, request["log"])
            sys.argv = [script, *request["arguments"]]
            runpy.run_path(script, run_name="__main__")
            return
        _, ended, usage = os.wait4(child, 0)
        child = 0
        answer = {"status": os.waitstatus_to_exitcode(ended), "seconds_cpu": usage.ru_utime + usage.ru_stime}
        print(json.dumps(answer), file=answers, flush=True)


def _redirect(answers, log: str) -> None:
    """Give a child an empty input and the log as its output."""
    answers.close()
    null, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, target in ((0, null), (1, file), (2, file)):
        os.dup2(target, number)


if __name__ == "__main__":
    serve(sys.argv[1])
