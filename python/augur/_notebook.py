"""What a notebook shows while the engine works."""

import html
import sys


def progress_bar(title: str) -> "ProgressBar | None":
    """A bar where this is a notebook, whose output is no terminal; elsewhere the engine shows its own."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return ProgressBar(title) if shell is not None and hasattr(shell, "kernel") else None


class ProgressBar:
    def __init__(self, title: str):
        from IPython.display import HTML, display

        self._title, self._html = title, HTML
        self._handle = display(HTML(html.escape(title)), display_id=True)

    def update(self, done: int, total: int, figures: str) -> None:
        text = f"{self._title} {done}/{total} &ensp;{html.escape(figures)}"
        self._handle.update(self._html(f'<progress value="{done}" max="{total}"></progress> {text}'))
