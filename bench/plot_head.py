"""Draws the scaling table of docs/performance.md as docs/head-scaling.svg: `python bench/plot_head.py`."""

import math
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
HIDDEN, T_FIXED, V_FIXED = 2560, 16384, 151936
PEAK = 989e12  # H200, dense bf16, operations a second
WIDTH, HEIGHT, LEFT, TOP = 250, 190, 52, 34
COLOURS = {"three GEMMs": "#6b7280", "augur": "#2563eb", "roofline": "#d97706"}


def read_rows() -> list[dict[str, float]]:
    names = ["T", "V", "gemms", "augur", "ratio", "half", "decide", "gemms_peak", "augur_peak"]
    rows = []
    for line in (DOCS / "performance.md").read_text().splitlines():
        cells = [cell.strip().replace(",", "") for cell in line.strip("|").split("|")]
        if len(cells) == len(names) and all(re.fullmatch(r"[0-9.]+", cell) for cell in cells):
            rows.append(dict(zip(names, map(float, cells), strict=True)))
    return rows


def roofline_ms(row: dict[str, float]) -> float:
    return 6 * row["T"] * row["V"] * HIDDEN / PEAK * 1e3


def panel(x0: int, title: str, rows: list[dict], x: str, curves: dict) -> str:
    """One log-log plot; curves: name -> function of a row."""
    rows = sorted(rows, key=lambda row: row[x])
    values = [curve(row) for curve in curves.values() for row in rows]
    low, high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))
    left, right = rows[0][x], rows[-1][x]

    def across(v: float) -> float:
        return x0 + LEFT + WIDTH * math.log(v / left) / math.log(right / left)

    def down(v: float) -> float:
        return TOP + HEIGHT * (1 - math.log(v / low) / math.log(high / low))

    out = [f'<text x="{x0 + LEFT}" y="20" font-weight="600">{title}</text>']
    for k in range(round(math.log10(high / low)) + 1):
        y, label = down(low * 10**k), f"{low * 10**k:,.0f}"
        out.append(f'<line x1="{x0 + LEFT}" x2="{x0 + LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        out.append(f'<text x="{x0 + LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for row in rows:
        out.append(
            f'<text x="{across(row[x]):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{row[x] / 1024:.0f}k</text>'
        )
    for name, curve in curves.items():
        points = " ".join(f"{across(row[x]):.1f},{down(curve(row)):.1f}" for row in rows)
        dashes = ' stroke-dasharray="5 4"' if name == "roofline" else ""
        out.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"{dashes}/>')
        out += [
            f'<circle cx="{across(row[x]):.1f}" cy="{down(curve(row)):.1f}" r="3" fill="{COLOURS[name]}"/>'
            for row in rows
            if name != "roofline"
        ]
    return "\n".join(out)


def main() -> None:
    rows = read_rows()
    by_tokens = [row for row in rows if row["V"] == V_FIXED]
    by_vocabulary = [row for row in rows if row["T"] == T_FIXED]
    times = {"three GEMMs": lambda r: r["gemms"], "augur": lambda r: r["augur"], "roofline": roofline_ms}
    peaks = {"three GEMMs": lambda r: r["gemms_peak"], "augur": lambda r: r["augur_peak"]}
    step = LEFT + WIDTH + 24
    legend = "".join(
        f'<rect x="{LEFT + 150 * i}" y="{TOP + HEIGHT + 36}" width="14" height="4" fill="{colour}"/>'
        f'<text x="{LEFT + 150 * i + 20}" y="{TOP + HEIGHT + 42}">{name}</text>'
        for i, (name, colour) in enumerate(COLOURS.items())
    )
    body = "\n".join(
        [
            panel(0, f"ms by tokens, V = {V_FIXED:,}", by_tokens, "T", times),
            panel(step, f"ms by vocabulary, T = {T_FIXED:,}", by_vocabulary, "V", times),
            panel(2 * step, f"peak MiB by tokens, V = {V_FIXED:,}", by_tokens, "T", peaks),
        ]
    )
    width, height = 3 * step, TOP + HEIGHT + 56
    (DOCS / "head-scaling.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="#111827">\n<rect width="100%" height="100%" fill="white"/>\n'
        f"{body}\n{legend}\n</svg>\n"
    )


if __name__ == "__main__":
    main()
