"""What a run left in its directory."""

import html
import json
import re
import warnings
from collections.abc import Iterator
from os import PathLike, fspath
from pathlib import Path
from typing import IO

from augur._engine import Error, busy, call, call_apart


class Report:
    """A report's page; a notebook shows it in a frame of another origin, apart from the notebook's own."""

    def __init__(self, path: Path):
        self.path = path

    def __fspath__(self) -> str:
        return fspath(self.path)

    def __repr__(self) -> str:
        return f"Report({str(self.path)!r})"

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"))
        frame = 'sandbox="allow-scripts" style="width: 100%; height: 800px; border: 0"'
        return f'<iframe {frame} srcdoc="{page}"></iframe>'


class Run:
    """A run directory, finished or not. Figures are read when they are asked for, so that they are those of now."""

    def __init__(self, path: str | PathLike, stopped_by: str | None = None):
        self.path = Path(path).absolute()  # also after os.chdir
        # The signal that ended this call of train before the last step; None where it came to its end.
        self.stopped_by = stopped_by
        if not (self.path / "config.yaml").exists():
            raise Error(f"{self.path}: is no run directory: it holds no config.yaml; name one that augur.train made")
        if (self.path / "manifest.json").exists():
            raise Error(f"{self.path}: is a checkpoint; name the run that it belongs to")

    def __fspath__(self) -> str:
        return fspath(self.path)

    def __repr__(self) -> str:
        try:
            state = f"step {self.step}{'' if self.finished else ', unfinished'}"
        except Error:
            state = "damaged"
        return f"Run({str(self.path)!r}, {state})"

    @property
    def history(self) -> list[dict]:
        """The metrics of every step, each with its "step"; that of an evaluation before the first is 0."""
        return [{"step": step, **data} for step, data in self._steps()]

    @property
    def metrics(self) -> dict[str, float]:
        """The newest value of every metric."""
        newest: dict[str, float] = {}
        for _, data in self._steps():
            newest |= data
        return newest

    @property
    def step(self) -> int:
        """The last step trained."""
        return max((step for step, _ in self._steps()), default=0)

    @property
    def finished(self) -> bool:
        """Whether it came to its last step; one that shall take further steps has not."""
        summary = self.path / "summary.json"
        if not summary.exists():
            return False
        config = _text(self.path / "config.yaml")
        wanted = re.search(r"^(?:train|sft):\n(?:  .*\n)*?  steps: (\d+)$", config, re.MULTILINE)
        try:
            steps = json.loads(_text(summary)).get("steps")
            return wanted is None or steps is None or steps >= int(wanted[1])
        except (ValueError, AttributeError, TypeError, RecursionError):
            raise Error(f"{summary}: is damaged; remove it, and the same training writes it again") from None

    @property
    def model_path(self) -> Path:
        """The trained model, a Hugging Face directory; of a run with lora.rank its adapter, in PEFT's format."""
        path, adapter = self.path / "model", self.path / "adapter"
        if not (path / "config.json").exists():
            if (adapter / "adapter_config.json").exists():
                return adapter
            if self.finished and any(self.path.glob("checkpoints/global_step_*/manifest.json")):
                raise Error(f"{path}: is gone; `augur export RUN OUT` makes it of the newest checkpoint")
            if self.finished:
                what = f"{self.path}: its model and checkpoints were removed"
                raise Error(f"{what}; train it again in another run.dir; `augur frontier --keep-weights` keeps them")
            raise Error(f"{path}: the run has no model yet, it stands at step {self.step}; train it to its end")
        return path

    def tokens(self, step: int) -> list[dict]:
        """The responses of a step that were kept (log.tokens), each with the mask's decision on every token."""
        path = self.path / "tokens.jsonl"
        records = [line for line in _lines(path, step=int) if line["step"] == step]
        if not records:
            steps = sorted({line["step"] for line in _lines(path, step=int)})
            kept = f"steps {steps[0]} to {steps[-1]} have" if steps else "no step has"
            raise Error(f"{path}: holds no tokens of step {step}; {kept} (log.tokens says how many are kept)")
        return records

    def report(self) -> Report:
        """Writes the run's page again and returns it; as the last line of a cell, a notebook shows it. While this
        process trains, another one writes it."""
        page = self.path / "report.html"
        write = call_apart if busy() else call
        write(["report", fspath(self.path), "-o", fspath(page)])
        return Report(page)

    def _steps(self) -> Iterator[tuple[int, dict]]:
        for line in _lines(self.path / "metrics.jsonl", step=int, data=dict):
            yield line["step"], line["data"]


def _lines(path: Path, **kinds: type) -> Iterator[dict]:
    """The JSON lines of a file, without a last one that is still being written. Those that lack a key of these kinds
    are damaged, which is told, and left out."""
    if not path.exists():
        return
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict) and all(isinstance(value.get(name), kind) for name, kind in kinds.items()):
                yield value
            else:
                warnings.warn(f"{path}:{number}: is damaged and left out", stacklevel=3)


def _opened(path: Path) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as fault:
        raise Error(f"{path}: cannot be read: {fault.strerror}; put the run's file back, or remove it") from None


def _text(path: Path) -> str:
    with _opened(path) as file:
        return file.read().decode("utf-8", "replace")
