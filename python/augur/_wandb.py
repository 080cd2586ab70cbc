"""Sends a run's metrics to Weights & Biases: `python _wandb.py PROJECT RUN-DIRECTORY`, descriptor 3 being a socket.

Out goes {"ready": true} or {"fault"}, once the package is there and again once its run is. In come lines of JSON: first
{"config": yaml, "anew"}, then {"step", "data"} as in metrics.jsonl and {"report": path}.
The run's id stays in RUN/wandb.json, so that a run that goes on does so there, too. Where a run begins anew the engine
moves that file aside with the others, which is why a new id is written with the first figures only.
"""

import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from pathlib import Path

_PATIENCE = 10.0  # seconds that a call of wandb's may still take once the engine is gone


def _end_with(parent: int) -> None:
    """A thread, since the calls of wandb's that block do not return."""
    while os.getppid() == parent:
        time.sleep(0.5)
    time.sleep(_PATIENCE)
    os._exit(1)


def main() -> None:
    threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine ends this after its last step
    project, directory = sys.argv[1], Path(sys.argv[2])
    connection = socket.socket(fileno=3)

    def answer(message: dict) -> None:
        connection.sendall(json.dumps(message).encode() + b"\n")

    try:
        import wandb
        import yaml
    except ImportError:
        answer({"fault": f"{sys.executable} has no package wandb", "remedy": "pip install wandb, or remove log.wandb"})
        return
    answer({"ready": True})
    lines = connection.makefile("r", encoding="utf-8")
    line = lines.readline()
    if not line:  # the run did not come that far
        return
    begin = json.loads(line)
    file = directory / "wandb.json"
    goes_on = file.exists() and not begin["anew"]
    run_id = json.loads(file.read_text())["id"] if goes_on else secrets.token_hex(4)
    try:
        run = wandb.init(
            project=project,
            name=directory.resolve().name,
            id=run_id,
            resume="allow",
            dir=str(directory),
            config=yaml.safe_load(begin["config"]),
        )
    except Exception as error:
        answer(
            {
                "fault": f"cannot start: {' '.join(str(error).split())[:300]}",
                "remedy": "run wandb login or wandb offline",
            }
        )
        return
    answer({"ready": True})
    for line in lines:
        if not file.exists():
            file.write_text(json.dumps({"id": run_id}) + "\n")
        message = json.loads(line)
        if "report" in message:
            run.log({"report": wandb.Html(Path(message["report"]).read_text(encoding="utf-8"), inject=False)})
        else:
            run.log({k: v for k, v in message["data"].items() if v is not None}, step=message["step"])
    run.finish()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
