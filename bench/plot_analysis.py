"""Draws figures 3 and 4 of the paper from the analysis.json of `augur analyze`:

    python bench/plot_analysis.py docs/analysis-smollm2.svg RUN/analysis.json RUN/analysis.json

One row for each file and divergence: unsafe keeps of ratio and criterion joined seed by seed, for the aggregated and
the exact tail, and the distribution of the change of D over the disagreement tokens that each keeps.
"""

import json
import sys
from pathlib import Path

from panel import GREY, Panel, drawing

SIDE, LEFT, TOP, ROW = 190, 50, 46, 262
CRITERIA = {"predicted-aggregated": ("aggregated tail", "#d97706"), "predicted-exact": ("exact tail", "#2563eb")}


def unsafe_keeps(x: float, y: float, criterion: dict) -> Panel:
    name, colour = CRITERIA[criterion["name"]]
    seeds = [s for s in criterion["per_seed"] if s["unsafe_keep"] is not None and s["ratio_unsafe_keep"] is not None]
    lower = sum(s["unsafe_keep"] < s["ratio_unsafe_keep"] for s in seeds)
    panel = Panel(x, y, SIDE, f"unsafe keep, lower in {lower} of {len(seeds)} seeds", (-0.2, 1.2), (0, 1))
    for seed in seeds:
        panel.line([(0, seed["ratio_unsafe_keep"]), (1, seed["unsafe_keep"])], GREY, 0.7, 'opacity="0.6"')
    mean = [sum(s[key] for s in seeds) / len(seeds) for key in ("ratio_unsafe_keep", "unsafe_keep")]
    panel.line([(0, mean[0]), (1, mean[1])], colour, 3)
    for at, label in ((0, "ratio"), (1, name)):
        panel.mark(at, 0, label, "middle")
    for share in (0, 0.5, 1):
        panel.mark(-0.2, share, f"{100 * share:.0f}%", "end")
    return panel


def changes(x: float, y: float, criteria: list[dict]) -> Panel:
    curves = [(CRITERIA[c["name"]], c["disagreements"]["ecdf"]) for c in criteria]
    curves.append((("ratio", GREY), criteria[-1]["disagreements"]["ratio_ecdf"]))
    values = sorted(abs(p[0]) for _, points in curves for p in points)
    most = values[int(0.9 * (len(values) - 1))]
    panel = Panel(x, y, SIDE, "change of D of kept disagreements", (-most, most), (0, 1))
    panel.line([(0, 0), (0, 1)], "#9ca3af", 0.7)
    for row, ((name, colour), points) in enumerate(curves):
        panel.line(points, colour, 1.8, 'stroke-dasharray="5 3"' if name == "ratio" else "")
        panel.parts.append(f'<text x="{x + 6}" y="{y + 14 + 13 * row}" fill="{colour}">{name}</text>')
    for at in (-most, 0, most):
        panel.mark(at, 0, f"{at:.2g}", "middle")
    for share in (0, 0.5, 1):
        panel.mark(-most, share, f"{100 * share:.0f}%", "end")
    return panel


def main() -> None:
    out, *files = map(Path, sys.argv[1:])
    rows, parts = 0, []
    for file in files:
        for study in json.loads(file.read_text())["divergences"]:
            criteria = [c for c in study["criteria"] if c["name"] in CRITERIA]
            y = TOP + rows * ROW
            title = f"{study['divergence'].upper()}, δ = {study['delta']}: {study['outside_total']:,} tokens outside"
            parts.append(f'<text x="{LEFT}" y="{y - 26}" font-size="13" font-weight="600">{title}</text>')
            panels = [unsafe_keeps(LEFT + i * (SIDE + 55), y, c) for i, c in enumerate(criteria)]
            panels.append(changes(LEFT + len(criteria) * (SIDE + 55), y, criteria))
            parts += [part for panel in panels for part in panel.parts]
            rows += 1
    out.write_text(drawing(LEFT + 3 * (SIDE + 55), rows * ROW + 10, parts))


if __name__ == "__main__":
    main()
