// Curves over steps with hover and smoothing, and scatter plots.
const charts = [];
let smoothing = 0;

function chartsAvailable() {
  return typeof Chart !== "undefined";
}

// Exponential average that starts without bias, as TensorBoard's.
function smooth(points, weight) {
  let sum = 0;
  let norm = 0;
  return points.map(([x, y]) => {
    sum = weight * sum + (1 - weight) * y;
    norm = weight * norm + (1 - weight);
    return { x, y: sum / norm };
  });
}

// The frame of a chart: title, one sentence, canvas.
function chartFrame(title, about) {
  const canvas = el("canvas", attr({ role: "img", "aria-label": `${title}. ${about || ""}` }));
  const frame = el("div.panel.chart", el("h3", title), about ? el("p.about", about) : null, el("div.box", canvas));
  return { frame, canvas };
}

// Ends an axis where its values end, whatever room its ticks would take.
function within(least, most) {
  return (axis) => {
    axis.min = Math.max(axis.min, least);
    axis.max = Math.min(axis.max, most);
    axis.ticks = axis.ticks.filter(({ value }) => value >= axis.min && value <= axis.max);
  };
}

function axes(xTitle, yTitle, percentages, extra = {}) {
  const ink = cssColor("var(--soft)");
  const grid = { color: cssColor("var(--grid)"), borderColor: cssColor("var(--line)") };
  const tick = (value, _, ticks) => { // with the digits that tell neighbours apart
    const step = ticks.length > 1 ? Math.abs(ticks[1].value - ticks[0].value) : 1;
    if (percentages) return percent(value, Math.min(4, Math.max(0, Math.ceil(-Math.log10(100 * step) - 1e-9))));
    return number(value, Math.max(3, Math.ceil(Math.log10(Math.abs(value) / step) + 1e-9) + 1));
  };
  return {
    x: { type: "linear", title: { display: Boolean(xTitle), text: xTitle, color: ink }, grid, ticks: { color: ink, maxTicksLimit: 7 }, ...extra.x },
    y: { title: { display: Boolean(yTitle), text: yTitle, color: ink }, grid, ticks: { color: ink, maxTicksLimit: 6, callback: tick }, ...extra.y },
  };
}
function tooltip(label) {
  return {
    backgroundColor: cssColor("var(--ink)"),
    titleColor: cssColor("var(--page)"),
    bodyColor: cssColor("var(--page)"),
    callbacks: label,
    boxPadding: 3,
  };
}

// Puts a chart on its canvas and makes it again when the theme changes.
function draw(canvas, makeConfig) {
  if (!chartsAvailable()) {
    canvas.replaceWith(el("p.soft.small", "This build of augur has no chart library (Debian package libjs-chart.js)."));
    return null;
  }
  const holder = { canvas, chart: null };
  holder.update = () => {
    if (holder.chart) holder.chart.destroy();
    holder.chart = new Chart(canvas, makeConfig());
  };
  holder.renew = () => { // new values, the chart as it stands
    holder.chart.data = makeConfig().data;
    holder.chart.update("none");
  };
  charts.push(holder);
  redraw.push(holder.update);
  holder.update();
  return holder;
}

// One line per run and name; with smoothing the raw values stay behind it, faint.
function lineDatasets(lines) {
  const sets = [];
  for (const line of lines) {
    const color = cssColor(line.color);
    const raw = line.points.map(([x, y]) => ({ x, y }));
    const few = raw.length < 40;
    const common = { borderColor: color, backgroundColor: color, borderDash: line.dash || [], pointHitRadius: 6 };
    const smoothed = smoothing > 0 && raw.length > 2 && !line.exact;
    if (line.band && !smoothed) {
      const edge = { ...common, label: null, borderWidth: 0, pointRadius: 0, pointHitRadius: 0, backgroundColor: color + "22" };
      sets.push({ ...edge, data: line.band.map(([x, low]) => ({ x, y: low })), fill: false });
      sets.push({ ...edge, data: line.band.map(([x, , high]) => ({ x, y: high })), fill: "-1" });
    }
    if (smoothed) {
      sets.push({ ...common, data: raw, label: null, borderColor: color + "44", borderWidth: 1, pointRadius: 0 });
    }
    sets.push({
      ...common,
      label: line.label,
      data: smoothed ? smooth(line.points, smoothing) : raw,
      raw,
      borderWidth: 2,
      pointRadius: few ? 2.5 : 0,
      pointHoverRadius: 4,
    });
  }
  return sets;
}

function lineChart(parent, options) {
  const steps = { ticks: { precision: 0, maxTicksLimit: 7 }, afterBuildTicks: within(0, Infinity) };
  curveChart(parent, { xTitle: "step", xAxis: steps, ...options });
}
function curveChart(parent, { title, about, lines, percentages, xTitle, yTitle, least, legend, xAxis }) {
  const { frame, canvas } = chartFrame(title, about);
  parent.append(frame);
  const label = (item) => {
    const value = item.dataset.raw[item.dataIndex].y;
    return `${item.dataset.label}: ${percentages ? percent(value, 2) : number(value)}`;
  };
  draw(canvas, () => ({
    type: "line",
    data: { datasets: lineDatasets(typeof lines === "function" ? lines() : lines) },
    options: {
      responsive: true,
      maintainAspectRatio: false,
      animation: false,
      interaction: { mode: "nearest", axis: "x", intersect: false },
      scales: curveAxes(xTitle, yTitle, percentages, least, xAxis),
      plugins: {
        legend: { display: Boolean(legend), position: "bottom", labels: { color: cssColor("var(--soft)"), boxHeight: 1, filter: (item) => Boolean(item.text) } },
        tooltip: { ...tooltip({ title: (items) => (items.length ? `${xTitle} ${number(items[0].parsed.x)}` : ""), label }), filter: (item) => item.dataset.label !== null },
      },
    },
  }));
}

function curveAxes(xTitle, yTitle, percentages, least, xAxis) {
  const y = { suggestedMin: least };
  if (percentages) y.afterBuildTicks = within(0, 1);
  else if (least !== undefined) y.afterBuildTicks = within(least, Infinity);
  const scales = axes(xTitle, yTitle, percentages, { y });
  if (xAxis) scales.x = { ...scales.x, ...xAxis, ticks: { ...scales.x.ticks, ...xAxis.ticks } };
  return scales;
}

// One chart of one metric, runs overlaid; nothing where none of them has it.
function metricChart(parent, name, title, about, { of = RUNS, ...options } = {}) {
  const lines = () => of.map((run) => ({ label: run.label, color: run.color, points: series(run, name) })).filter((l) => l.points.length);
  if (!lines().length) return false;
  lineChart(parent, { title, about, lines, ...options });
  shownMetrics.add(name);
  return true;
}
const shownMetrics = new Set();
// A chart for each measure (measureOf) of the runs; `title` and `about` are given it.
function chartsByMeasure(parent, name, title, about, options = {}) {
  for (const measure of new Set(RUNS.map((run) => measureOf(ruleOf(run))))) {
    if (measure === null) continue;
    const of = RUNS.filter((run) => measureOf(ruleOf(run)) === measure);
    metricChart(parent, name, title(measure), about(measure), { of, ...options });
  }
  shownMetrics.add(name); // a rule without a measure logs zeros
}

function runLegend() {
  const legend = el("div.legend.small");
  RUNS.forEach((run) => legend.append(el("span", dot(run), run.label)));
  return legend;
}
function smoothingTool() {
  const slider = el("input", attr({ type: "range", min: "0", max: "0.99", step: "0.01", value: "0", id: "smoothing", "aria-label": "Smoothing" }));
  const shown = el("span.mono.small", "0");
  slider.addEventListener("input", () => {
    smoothing = Number(slider.value);
    shown.textContent = slider.value;
    charts.forEach((holder) => holder.update());
  });
  return el("label.small", "Smoothing", slider, shown);
}

// A logarithmic axis is marked at powers of ten, or at twos and fives as well where it spans few of them.
function keepPowers(axis) {
  const wide = Math.log10(axis.max / axis.min) > 2.5;
  axis.ticks = axis.ticks.filter(({ value }) => {
    const lead = Number((value / 10 ** Math.floor(Math.log10(value) + 1e-9)).toFixed(6));
    return lead === 1 || (!wide && (lead === 2 || lead === 5));
  });
}

function scatterChart(parent, { title, about, sets, x, y, lines, plain }) {
  const { frame, canvas } = chartFrame(title, about);
  parent.append(frame);
  const rule = {
    id: "rules",
    afterDatasetsDraw(chart) {
      const { ctx, chartArea: area, scales } = chart;
      ctx.save();
      ctx.setLineDash([5, 4]);
      ctx.strokeStyle = cssColor("var(--ink)");
      ctx.fillStyle = cssColor("var(--ink)");
      ctx.font = "12px system-ui, sans-serif";
      for (const line of lines) {
        const scale = scales[line.axis];
        const at = scale.getPixelForValue(line.at);
        if (at < (line.axis === "x" ? area.left : area.top) || at > (line.axis === "x" ? area.right : area.bottom)) continue;
        ctx.beginPath();
        if (line.axis === "x") {
          ctx.moveTo(at, area.top);
          ctx.lineTo(at, area.bottom);
          ctx.textAlign = line.before ? "right" : "left";
          ctx.fillText(line.label, at + (line.before ? -4 : 4), area.top + 12);
          ctx.textAlign = "left";
        } else {
          ctx.moveTo(area.left, at);
          ctx.lineTo(area.right, at);
          ctx.fillText(line.label, area.left + 4, at - 4);
        }
        ctx.stroke();
      }
      ctx.restore();
    },
  };
  const scale = (axis) => ({ type: axis.log ? "logarithmic" : "linear", min: axis.min, max: axis.max, afterBuildTicks: axis.log ? keepPowers : undefined });
  draw(canvas, () => {
    const scales = axes(x.title, y.title, false, { x: scale(x), y: scale(y) });
    scales.x.ticks.callback = (v) => number(v, 2);
    return {
      type: "scatter",
      data: {
        datasets: (typeof sets === "function" ? sets() : sets).map((set) => ({
          label: set.label,
          data: set.points,
          pointStyle: set.shape,
          backgroundColor: cssColor(set.color) + "99",
          borderColor: cssColor(set.color),
          borderWidth: set.shape === "circle" ? 0 : 1.5,
          radius: set.radius || 3,
        })),
      },
      options: {
        responsive: true,
        maintainAspectRatio: false,
        animation: false,
        scales,
        plugins: {
          legend: { display: true, position: "bottom", labels: { usePointStyle: true, color: cssColor("var(--soft)"), boxHeight: 7 } },
          tooltip: tooltip({ label: (item) => plain ? `${item.dataset.label}: ${x.short} ${number(item.raw.x)}, ${y.short} ${number(item.raw.y)}` : `${item.dataset.label}, step ${item.raw.step}: ${x.short} ${number(item.raw.x)}, ${y.short} ${number(item.raw.full ?? item.raw.y)}, A ${number(item.raw.a)}` }),
        },
      },
      plugins: [rule],
    };
  });
}
