"""Draws the accuracy of runs against their steps, with 95% intervals over seeds (Student's t):

    python bench/plot_curves.py docs/smollm2-runs.csv docs/smollm2-learning.svg

One panel for each precision, one line for each mask.
"""

import csv
import sys
from pathlib import Path
from statistics import mean, stdev

from panel import Panel, drawing

SIDE, LEFT, TOP, STEPS = 300, 50, 40, 40
STUDENT_95 = {4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}  # by seeds
COLOURS = {
    "none": "#6b7280",
    "clip-dual": "#dc2626",
    "clip-dual-recomputed": "#7c3aed",
    "dppo-topk-kl": "#d97706",
    "predictive-aggregated": "#059669",
    "predictive-exact": "#2563eb",
}
TITLES = {"bf16": "bf16", "fp8_rollout": "FP8 rollout"}


def curves(rows: list[dict], precision: str) -> dict[str, list[list[float]]]:
    found: dict[str, list[list[float]]] = {}
    for row in rows:
        if row["study"] == "learning" and row["precision"] == precision:
            found.setdefault(row["mask"], []).append([float(a) for a in row["accuracy_percent"].split()])
    return found


def draw(x: float, precision: str, masks: dict[str, list[list[float]]]) -> list[str]:
    seeds = len(next(iter(masks.values())))
    panel = Panel(x, TOP, SIDE, f"{TITLES[precision]}, held-out avg@4, {seeds} seeds", (-1, STEPS + 2), (0, 55))
    for place, (mask, runs) in enumerate(masks.items()):
        points = []
        for i, values in enumerate(zip(*runs, strict=True)):
            step = STEPS * i / (len(runs[0]) - 1) + 0.25 * (place - 2.5)  # side by side
            half = STUDENT_95[seeds] * stdev(values) / seeds**0.5
            points.append((step, mean(values)))
            panel.line([(step, mean(values) - half), (step, mean(values) + half)], COLOURS[mask], 1, 'opacity="0.7"')
        panel.line(points, COLOURS[mask], 1.8)
        panel.parts.append(
            f'<text x="{x + SIDE - 6}" y="{TOP + SIDE - 78 + 13 * place}" text-anchor="end" '
            f'fill="{COLOURS[mask]}">{mask}</text>'
        )
    for step in range(0, STEPS + 1, 10):
        panel.mark(step, 0, str(step), "middle")
    for share in range(0, 51, 10):
        panel.mark(-1, share, f"{share}%", "end")
    return panel.parts


def main() -> None:
    table, out = map(Path, sys.argv[1:])
    rows = list(csv.DictReader(table.open()))
    parts = [part for i, p in enumerate(TITLES) for part in draw(LEFT + i * (SIDE + 50), p, curves(rows, p))]
    out.write_text(drawing(LEFT + 2 * (SIDE + 50), TOP + SIDE + 30, parts))


if __name__ == "__main__":
    main()
