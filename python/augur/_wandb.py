"""Sends a run's metrics to Weights & Biases: `python _wandb.py PROJECT RUN-DIRECTORY`, descriptor 3 being a socket.

In come lines of JSON: first {"config": yaml}, then {"step", "data"} as in metrics.jsonl and {"report": path}; out goes
one, {"ready": true} or {"fault"}.
The run's id stays in RUN/wandb.json, so that a run that goes on does so there, too.
"""

import json
import os
import secrets
import signal
import socket
import sys
from pathlib import Path


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine ends this after its last step
    project, directory = sys.argv[1], Path(sys.argv[2])
    connection = socket.socket(fileno=3)

    def answer(message: dict) -> None:
        connection.sendall(json.dumps(message).encode() + b"\n")

    lines = connection.makefile("r", encoding="utf-8")
    config = json.loads(lines.readline())["config"]
    try:
        import wandb
        import yaml
    except ImportError:
        answer({"fault": f"{sys.executable} has no package wandb", "remedy": "pip install wandb, or remove log.wandb"})
        return
    try:
        run = wandb.init(
            project=project,
            name=directory.resolve().name,
            id=run_id(directory),
            resume="allow",
            dir=str(directory),
            config=yaml.safe_load(config),
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
        message = json.loads(line)
        if "report" in message:
            run.log({"report": wandb.Html(Path(message["report"]).read_text(encoding="utf-8"), inject=False)})
        else:
            run.log({k: v for k, v in message["data"].items() if v is not None}, step=message["step"])
    run.finish()


def run_id(directory: Path) -> str:
    file = directory / "wandb.json"
    if not file.exists():
        file.write_text(json.dumps({"id": secrets.token_hex(4)}) + "\n")
    return json.loads(file.read_text())["id"]


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
