"""Runs a script again and again, each time in a process of its own that starts with all that the script imports.

    python -m benchmarks.harness.fork_server train.py

A line of its input, {"log": FILE, "arguments": [...]}, starts one; when that has ended, a line of its output says
{"status": ..., "seconds_cpu": ...}. Being forked saves the seconds that it takes to import torch and the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


class Warm:
    """Such a process, seen from outside."""

    def __init__(self, script: Path, environment: Mapping[str, str], errors) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors, "text": True}
        self.process = subprocess.Popen([sys.executable, "-m", __name__, str(script)], env=environment, **pipes)

    def run(self, log: Path, arguments: Sequence[str]) -> dict[str, float]:
        """Run the script with these arguments; how it ended, and what it cost."""
        try:
            self.process.stdin.write(json.dumps({"log": str(log), "arguments": list(arguments)}) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        return json.loads(answer) if answer else {"status": self.process.wait() or 1, "seconds_cpu": 0.0}

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """End what it runs, and itself."""
        self.process.terminate()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def serve(script: str) -> None:
    """Fork for each line that comes in. A child leaves this function by running the script."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed meanwhile is no answer
    sys.path.insert(0, str(Path(script).parent))  # as for any script
    runpy.run_path(script, run_name="warm")
    import structsparse.training.run  # noqa: F401  train.py imports it after it has read its arguments

    ctrl_c = signal.signal(signal.SIGINT, signal.SIG_IGN)  # it reaches the child as well, which knows what to do
    child = 0

    def stop(signum: int, frame: object) -> None:
        if child:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it has just ended
                os.kill(child, signum)
                os.waitpid(child, 0)
        os._exit(128 + signum)

    signal.signal(signal.SIGTERM, stop)
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until it is known whom to stop
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, ctrl_c)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if child == 0:
            _take_over(answers, order["log"])
            sys.argv = [script, *order["arguments"]]
            runpy.run_path(script, run_name="__main__")
            return
        _, ended, usage = os.wait4(child, 0)
        child = 0
        said = {"status": os.waitstatus_to_exitcode(ended), "seconds_cpu": usage.ru_utime + usage.ru_stime}
        print(json.dumps(said), file=answers, flush=True)


def _take_over(answers, log: str) -> None:
    """Nothing comes in, and all that is said goes to the log."""
    answers.close()
    nothing, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, taken in ((0, nothing), (1, file), (2, file)):
        os.dup2(taken, number)


if __name__ == "__main__":
    serve(sys.argv[1])
