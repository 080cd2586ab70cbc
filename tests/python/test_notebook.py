"""The notebook of the examples, run as a reader would."""

import ast
import shutil

import pytest

from conftest import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")


def output(cell, kind: str) -> str:
    """What a cell displayed."""
    return "".join(str(o.get("data", {}).get(kind, "")) for o in cell.outputs)


def result(cell) -> str:
    """The text of a cell's last expression."""
    return next(o["data"]["text/plain"] for o in cell.outputs if o.output_type == "execute_result")


@pytest.mark.slow
def test_the_notebook_trains_and_shows_a_bar_and_the_report(tmp_path, monkeypatch):
    notebook = nbformat.read(ROOT / "python" / "examples" / "quickstart.ipynb", as_version=4)
    for name in ("models", "recipes"):  # it looks for the repository upwards from where it is
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    nbclient.NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()

    def cell(beginning: str):
        return next(c for c in notebook.cells if c.cell_type == "code" and c.source.startswith(beginning))

    training = cell("rewards = []")
    assert '<progress value="5" max="5">' in output(training, "text/html")
    rewards = ast.literal_eval(result(training))
    assert len(rewards) == 5 and all(0 <= reward <= 1 for reward in rewards)
    figures = ast.literal_eval(result(cell("{name: value")))
    assert "val-core/sort/acc/mean@4" in figures and figures["reward/errors"] == 0
    assert "torch.Size" in result(cell("rollouts = augur.generate"))
    assert "<iframe sandbox=" in output(cell("run.report()"), "text/html")
    shutil.rmtree(tmp_path / "runs")
