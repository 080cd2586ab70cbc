"""Panels of the figures that bench/ draws as SVG."""

GREY = "#6b7280"


class Panel:
    """A square with linear axes."""

    def __init__(
        self, x: float, y: float, side: float, title: str, across: tuple[float, float], down: tuple[float, float]
    ):
        self.x, self.y, self.side, self.across, self.down = x, y, side, across, down
        self.parts = [
            f'<rect x="{x}" y="{y}" width="{side}" height="{side}" fill="none" stroke="#9ca3af"/>',
            f'<text x="{x}" y="{y - 8}" font-weight="600">{title}</text>',
        ]

    def place(self, x: float, y: float) -> tuple[float, float]:
        (x0, x1), (y0, y1) = self.across, self.down
        right = self.x + self.side * (min(max(x, x0), x1) - x0) / (x1 - x0)
        return right, self.y + self.side * (1 - (min(max(y, y0), y1) - y0) / (y1 - y0))

    def line(self, points: list, colour: str, width: float, extra: str = "") -> None:
        text = " ".join(f"{a:.1f},{b:.1f}" for a, b in (self.place(*p) for p in points))
        self.parts.append(f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="{width}" {extra}/>')

    def mark(self, x: float, y: float, text: str, anchor: str) -> None:
        a, b = self.place(x, y)
        below, aside = (14, 0) if anchor == "middle" else (4, -5)
        self.parts.append(f'<text x="{a + aside:.1f}" y="{b + below:.1f}" text-anchor="{anchor}">{text}</text>')


def drawing(width: float, height: float, parts: list[str]) -> str:
    style = 'font-family="sans-serif" font-size="11" fill="#374151"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {style}>'
        f"{background}{''.join(parts)}</svg>\n"
    )
