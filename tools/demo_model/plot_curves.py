"""Loss curves of training runs as one SVG: output loss on short and long rows, logarithmic, against tokens seen.

    python3 plot_curves.py OUT.svg LABEL=RUN/info.json,RESUMED/info.json ...

Runs joined by commas resumed one another: their tokens add up.
"""

import json
import math
import sys

COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b"]
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 420, 60, 20, 50
LEAST = 0.01          # the lower end of the axis of losses


def main():
    out, runs = sys.argv[1], [a.split("=", 1) for a in sys.argv[2:]]
    curves = []
    for label, paths in runs:
        log, before = [], 0
        for path in paths.split(","):
            part = json.load(open(path, encoding="utf-8"))["log"]
            log += [dict(e, tokens=e["tokens"] + before) for e in part]
            before = log[-1]["tokens"]
        for rows in ("short", "long"):
            points = [(e["tokens"] / 1e6, e[rows]["loss"]) for e in log if rows in e and e[rows]["loss"] > 0]
            if points:
                curves.append((f"{label}, {rows} rows", points))
    right = max(x for _, p in curves for x, _ in p)
    low, high = math.log(LEAST), math.log(10)
    px = lambda x: LEFT + x / right * (WIDTH - LEFT - 20)
    py = lambda y: TOP + (high - math.log(max(y, LEAST))) / (high - low) * (HEIGHT - TOP - BOTTOM)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for y in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10):
        svg.append(f'<path d="M{LEFT} {py(y):.1f}H{WIDTH - 20}" stroke="#ddd"/><text x="{LEFT - 8}" y="{py(y) + 4:.1f}" text-anchor="end">{y}</text>')
    for i in range(6):
        x = right * i / 5
        svg.append(f'<text x="{px(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:.0f}</text>')
    svg.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">million tokens; loss per output token</text>')
    for i, (label, points) in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        path = "M" + "L".join(f"{px(x):.1f} {py(y):.1f}" for x, y in points)
        svg.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        svg.append(f'<text x="{WIDTH - 300}" y="{TOP + 16 + 16 * i}" fill="{colour}">{label}</text>')
    with open(out, "w", encoding="utf-8") as f:
        f.write("\n".join([*svg, "</svg>\n"]))


if __name__ == "__main__":
    main()
