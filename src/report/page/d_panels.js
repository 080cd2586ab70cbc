// The panels of curves: training, mask, mismatch, and whatever else was logged.
function showCurves() {
  if (!metricNames().length) return;
  const section = addSection("curves", "Training");
  section.append(el("div.tools", smoothingTool(), RUNS.length > 1 ? runLegend() : null));
  const grid = el("div.grid");
  section.append(grid);
  for (const name of accuracyNames()) {
    metricChart(grid, name, "Held-out accuracy", accuracySource(name), { percentages: true });
  }
  metricChart(grid, "critic/score/mean", "Reward", "mean over the responses of a step");
  metricChart(grid, "response_length/mean", "Response length", "tokens, mean over the responses of a step");
  metricChart(grid, "actor/entropy", "Entropy", "of the policy, nats per token");
  metricChart(grid, "actor/pg_loss", "Policy loss", "−Σ M·r·A over tokens");
  metricChart(grid, "actor/grad_norm", "Gradient norm", "before clipping");
  metricChart(grid, "perf/throughput", "Throughput", "tokens per second, whole step", { least: 0 });
}

const FLAG = { outside: 1, masked: 2, disagree: 4 };
function pointSets(points, at) {
  const groups = [
    { label: "inside", color: "var(--run7)", shape: "circle", radius: 2, take: (f) => !(f & FLAG.outside) },
    { label: "outside, kept", color: "var(--kept)", shape: "circle", radius: 3.5, take: (f) => f & FLAG.outside && !(f & (FLAG.masked | FLAG.disagree)) },
    { label: "masked", color: "var(--masked)", shape: "crossRot", radius: 4, take: (f) => f & FLAG.masked && !(f & FLAG.disagree) },
    { label: "criteria disagree", color: "var(--disagree)", shape: "triangle", radius: 5, take: (f) => f & FLAG.disagree },
  ];
  return groups
    .map((group) => ({
      ...group,
      points: points
        .filter((p) => group.take(p[5]))
        .map((p) => ({ ...at(p), step: p[0], a: p[4] }))
        .filter((p) => Number.isFinite(p.x) && Number.isFinite(p.y)),
    }))
    .filter((group) => group.points.length);
}
function deltaOf(run) {
  const config = run.config || {};
  const proximity = config["mask.proximity"];
  const delta = Number(config["mask.delta"]);
  const fixed = proximity && proximity !== "none" && proximity !== "ratio" && !(Number(config["mask.outside_budget"]) > 0);
  return fixed && delta > 0 ? delta : null;
}

// A width that the bulk of the values fits into.
function spread(values, share = 0.99) {
  const sorted = values.map(Math.abs).filter(Number.isFinite).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(share * (sorted.length - 1))] || 1 : 1;
}

function scatterPanels(section, run) {
  const points = run.points.points;
  const delta = deltaOf(run);
  const grid = el("div.grid.wide");
  section.append(el("h3", dot(run), RUNS.length > 1 ? run.label : "Single tokens"));
  const sample = el("p.soft.small.sample");
  const tell = () => {
    const { points, tokens, outside } = run.points;
    sample.textContent = `A sample of ${count(points.length)} from ${count(tokens)} tokens, of which ${count(outside)} were outside; outside tokens are drawn more often.`;
  };
  tell();
  redraw.push(tell);
  section.append(sample);
  section.append(grid);
  const rule = ruleOf(run);
  const byRatio = rule.proximity === "ratio";
  const measure = measureOf(rule) || "D";
  const name = rule.direction !== "ratio" ? "Ḋ" : "(r − 1)";
  const small = 1e-6;
  const deltaLine = delta ? [{ axis: "x", at: delta, label: `δ = ${delta}` }] : [];
  if (byRatio) {
    for (const [side, at] of [["r < 1", Number(rule.clip_low)], ["r > 1", Number(rule.clip_high)]]) {
      if (at > 0) deltaLine.push({ axis: "x", at, label: `${side}: ${at}`, before: side === "r < 1" });
    }
  }
  const outsideWhere = byRatio ? "Right of its line a token is outside" : delta ? "Right of δ a token is outside" : "A token beyond its batch's δ is outside";
  const horizontal = byRatio ? { title: "|r − 1|", short: "|r − 1|", log: true } : { title: `divergence D (${measure})`, short: "D", log: true };
  const reach = 1.2 * spread(points.map((p) => p[3] * p[4]));
  scatterChart(grid, {
    title: "Proximity and direction",
    about: `${outsideWhere}; above zero (A·${name} > 0) its update would take it further out: the upper right is masked. Values beyond the frame are drawn at its edge.`,
    sets: () => pointSets(run.points.points, (p) => ({ x: Math.max(p[2], small), y: Math.max(-reach, Math.min(reach, p[3] * p[4])), full: p[3] * p[4] })),
    x: horizontal,
    y: { title: `A · ${name}`, short: `A·${name}`, min: -reach, max: reach },
    lines: [...deltaLine, { axis: "y", at: 0, label: "" }],
  });
  if (byRatio) return; // r over |r − 1| says nothing
  scatterChart(grid, {
    title: "Ratio against divergence",
    about: "The sampled token's ratio r says little about how far the whole distribution has moved.",
    sets: () => pointSets(run.points.points, (p) => ({ x: Math.max(p[2], small), y: p[1] })),
    x: horizontal,
    y: { title: "ratio r", short: "r", log: true },
    lines: [...deltaLine, { axis: "y", at: 1, label: "" }],
  });
}

function showMask() {
  const names = metricNames().filter((n) => n.startsWith("mask/") || n === "actor/pg_clipfrac");
  const withPoints = RUNS.filter((run) => run.points);
  if (!names.length && !withPoints.length) return;
  const section = addSection("mask", "Mask", "A token's update is masked when the policy has left the trust region around the policy that sampled it, and the update would take it further.");
  const grid = el("div.grid");
  section.append(grid);
  const share = { percentages: true, least: 0 };
  chartsByMeasure(grid, "mask/outside", (measure) => `Outside by ${measure}`, () => "share of tokens beyond the threshold", share);
  metricChart(grid, "mask/masked", "Masked", "share of tokens outside and pointing outward", share) ||
    metricChart(grid, "actor/pg_clipfrac", "Masked", "share of tokens outside and pointing outward", share);
  metricChart(grid, "mask/disagree", "Criteria disagree", "share of tokens outside on which ratio and prediction decide differently", share);
  chartsByMeasure(grid, "mask/divergence", (measure) => (measure === "|r − 1|" ? "Mean |r − 1|" : `Divergence: ${measure}`),
    (measure) => (measure === "|r − 1|" ? "of the sampled tokens; no divergence of the distributions" : "mean D over tokens"), { least: 0 });
  for (const name of ["audit/unsafe_keep", "audit/contraction", "audit/disagree"]) {
    chartsByMeasure(grid, name, (measure) => `Audit by ${measure}: ${name.slice(6).replace("_", " ")}`, () => "outside tokens, scored again after the update", share);
  }
  chartsByMeasure(grid, "audit/delta_divergence", (measure) => `Audit: change of ${measure}`, () => "mean over outside tokens, by the update");
  withPoints.forEach((run) => scatterPanels(section, run));
}

const MISMATCH = [
  ["actor/ppo_kl", "PPO-KL", "mean of log μ − log π at the sampled tokens"],
  [/(rollout|mismatch).*(diff|logp).*mean/, "Log-prob difference", "rollout engine against trainer, mean of |log μ − log π|", { least: 0 }],
  [/(rollout|mismatch).*(diff|logp).*max/, "Largest log-prob difference", "rollout engine against trainer, largest of the step", { least: 0 }],
  [/(rollout|mismatch).*kl/, "KL to the rollout policy", "before the first update of a step"],
  [/(^|\/)(staleness|age)$/, "Age of the rollouts", "weight versions between sampling and update", { least: 0 }],
  ["mask/mass_clamped", "Mass clamped", "share of tokens whose recorded mass exceeded 1 by rounding", { percentages: true, least: 0 }],
  ["mask/ratio", "Ratio", "mean of π/μ over tokens"],
];
function showMismatch() {
  const found = MISMATCH.flatMap(([pattern, title, about, options]) =>
    metricNames()
      .filter((n) => (pattern instanceof RegExp ? pattern.test(n) && !n.startsWith("timing_s/") : n === pattern))
      .filter((n) => !shownMetrics.has(n))
      .map((name) => [name, title, pattern instanceof RegExp ? `${about} (${name})` : about, options]),
  );
  if (!found.length) return;
  const section = addSection("mismatch", "Mismatch", "How far the policy that sampled is from the one being trained: other arithmetic, older weights, earlier minibatches of the same step.");
  const grid = el("div.grid");
  section.append(grid);
  found.forEach(([name, title, about, options]) => shownMetrics.has(name) || metricChart(grid, name, title, about, options));
}

// Any other metric, one at a time.
function showMore() {
  const rest = metricNames().filter((n) => !shownMetrics.has(n));
  if (!rest.length) return;
  const section = addSection("more", "All metrics");
  const choice = el("select", attr({ id: "metric", "aria-label": "Metric" }));
  rest.forEach((name) => choice.append(el("option", attr({ value: name }), name)));
  const place = el("div.grid.wide");
  section.append(el("div.tools", el("label.small", "Metric", choice)), place);
  const show = () => {
    const old = place.querySelector("canvas");
    const at = charts.findIndex((holder) => holder.canvas === old);
    if (at >= 0) {
      redraw.splice(redraw.indexOf(charts[at].update), 1);
      charts[at].chart.destroy();
      charts.splice(at, 1);
    }
    place.replaceChildren();
    metricChart(place, choice.value, choice.value, "");
  };
  choice.addEventListener("change", show);
  show();
}
