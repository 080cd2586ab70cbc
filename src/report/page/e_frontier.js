// The result of augur frontier: one map for each arm, and the share of the grid that it survives.
function axisTitle(name) {
  return { lr_factor: "learning rate ×", updates_per_batch: "updates per batch" }[name] || name;
}
// The first axis runs across, the second down; each value of the others has a map of its own.
function frontierMaps(panel, arm, axes, best) {
  const [across, down, ...others] = axes;
  const rows = down ? down.values : [""];
  const maps = new Map();
  for (const cell of arm.cells) {
    const key = others.map((axis, i) => `${axisTitle(axis.name)} ${axis.values[cell.at[i + 2]]}`).join(", ");
    if (!maps.has(key)) maps.set(key, []);
    maps.get(key).push(cell);
  }
  const grid = el("div.maps");
  for (const [title, cells] of maps) {
    const body = el("table.map");
    body.append(el("tr", el("th", down ? `${axisTitle(down.name)} ↓` : ""), ...across.values.map((value) => el("th", `${axisTitle(across.name)} ${value}`))));
    rows.forEach((value, r) => {
      const line = el("tr", el("th", value));
      across.values.forEach((_, c) => line.append(frontierCell(cells.find((cell) => cell.at[0] === c && (!down || cell.at[1] === r)), best)));
      body.append(line);
    });
    grid.append(el("div", title ? el("h4", title) : null, el("div.table-box", body)));
  }
  panel.append(grid);
}
function frontierCell(cell, best) {
  if (!cell.counted) return el("td.soft", "–");
  const share = cell.final_accuracy === null ? 0 : cell.final_accuracy / (best || 1);
  const broken = 2 * cell.broken >= cell.counted;
  const notes = cell.runs.map((run) => `seed ${run.seed}: ${run.finished || run.broken ? `${percent(run.start)} → ${percent(run.final)}, best ${percent(run.best)}${run.broken ? ", broken" : ""}` : run.note}`);
  if (cell.updates != null) notes.push(`${number(cell.updates, 3)} updates a step`);
  const node = el(broken ? "td.broken" : "td", attr({
    style: `background-color:color-mix(in srgb, var(--pi) ${Math.round(60 * share)}%, transparent)`,
    title: notes.join("\n"), "data-broken": cell.broken,
  }), cell.final_accuracy === null ? "not finite" : inPercent(cell.final_accuracy));
  if (cell.broken) node.append(el("span.count", ` ✕ ${cell.broken}/${cell.counted}`));
  return node;
}
function showFrontier(run) {
  const f = run.frontier;
  if (!Array.isArray(f.arms) || !f.axes.length) throw new Error("no grid");
  const section = addSection(`frontier-${run.index}`, RUNS.length > 1 ? `Frontier: ${run.label}` : "Frontier",
    `Where training breaks: ${f.arms.length} masks over ${f.axes.map((a) => `${a.values.length} values of ${axisTitle(a.name)}`).join(", ")}, ${f.seeds.length} seeds. A run is broken when its accuracy falls below half its best, ends below its start, or nothing finite is left.`);
  if (f.unfinished) section.append(noteBox([`${count(f.unfinished)} runs are not finished yet.`]));
  const show = (x) => inPercent(x);
  section.append(el("div.panel", table([
    ["mask", "share of the grid surviving %", `minus ${f.baseline}`, "p", "broken runs"],
    ...f.arms.map((arm) => {
      const total = (key) => arm.cells.reduce((sum, cell) => sum + cell[key], 0);
      const d = arm.minus_baseline;
      return [arm.name, interval(arm.surviving, show), d ? interval(d, show) : "", d ? pValue(d.p) : "", `${total("broken")} of ${total("counted")}`];
    }),
  ]), el("p.soft.small", `Intervals: ${Math.round(100 * f.level)}% bootstrap over seeds; differences are paired by seed.`)));
  const best = Math.max(0, ...f.arms.flatMap((arm) => arm.cells.map((cell) => cell.final_accuracy || 0)));
  for (const arm of f.arms) {
    const panel = el("div.panel", attr({ style: "margin-top:.9rem" }));
    panel.append(el("h3", arm.name, el("span.soft.small", `  survives ${interval(arm.surviving, show)}% of the grid`)));
    panel.append(el("p.soft.small", "Final accuracy in %, mean over seeds; hatched with ✕ where at least half of the runs broke, and how many did."));
    frontierMaps(panel, arm, f.axes, best);
    section.append(panel);
  }
}
