// Results of augur analyze and augur compare.
function plusMinus(figure, show) {
  if (!figure || figure.mean === null) return "–";
  return figure.se === null || figure.se === undefined ? show(figure.mean) : `${show(figure.mean)} ± ${show(figure.se)}`;
}
const inPercent = (x) => (100 * x).toFixed(1).replace("-", "−");
const inTenThousandths = (x) => (1e4 * x).toFixed(1).replace("-", "−");
function pValue(p) {
  return p === null || p === undefined ? "–" : p < 0.001 ? "< 0.001" : p.toFixed(3);
}
function twoSeeds(figure) {
  const seeds = (figure.by_seed || []).filter((value) => value !== null);
  return seeds.length === 2 ? seeds : null;
}
// One seed has no interval, and that of two says nothing: their values do.
const LEAST_SEEDS = 3;
function interval(figure, show) {
  if (!figure || figure.mean === null) return "–";
  const both = twoSeeds(figure);
  if (both) return `${show(figure.mean)} (${both.map(show).join(", ")})`;
  return figure.low === null ? show(figure.mean) : `${show(figure.mean)} [${show(figure.low)}, ${show(figure.high)}]`;
}
const CRITERIA = {
  ratio: "ratio",
  "predicted-aggregated": "predicted, aggregated tail",
  "predicted-uniform": "predicted, uniform tail",
  "predicted-exact": "predicted, exact tail",
  "predicted-full": "predicted, whole vocabulary",
};
function criterionName(name) {
  return CRITERIA[name] || name;
}

function studyTables(panel, study) {
  const head = ["criterion", "masked of outside %", "sign accuracy %", "zeros", "own effect's sign %"];
  const own = study.decomposition ? study.decomposition.own_effect_sign_accuracy : {};
  panel.append(el("h3", "Prediction"), el("p.soft.small", "Does the sign of A × direction match the change of D that the unmasked update really brings? That change is the work of the whole update, of which the token is a small part; the last column asks only for the token's own part."));
  panel.append(table([head, ...study.criteria.map((c) => [
    criterionName(c.name), plusMinus(c.masked, inPercent), plusMinus(c.prediction.sign_accuracy, inPercent), count(c.prediction.zeros),
    own[c.name] === undefined || own[c.name] === null ? "–" : inPercent(own[c.name]),
  ])]));
  panel.append(el("h3", "Control"), el("p.soft.small", "How does D of the outside tokens change on average under each mask? In units of 10⁻⁴, mean over seeds ± standard error; p by a paired t test. Lower holds the region better."));
  panel.append(table([
    ["mask", "change of D", "minus unmasked", "p", "minus ratio", "p", "surrogate kept %"],
    ["none", plusMinus(study.unmasked_change, inTenThousandths), "", "", "", "", "100.0"],
    ...study.criteria.map((c) => {
      const against = c.name === "ratio" ? null : c.control.minus_ratio;
      return [criterionName(c.name), plusMinus(c.control.change, inTenThousandths), plusMinus(c.control.minus_unmasked, inTenThousandths), pValue(c.control.minus_unmasked.p),
        against ? plusMinus(against, inTenThousandths) : "", against ? pValue(against.p) : "", plusMinus(c.control.surrogate_kept, inPercent)];
    }),
  ]));
  panel.append(el("h3", "Disagreements"), el("p.soft.small", "Outside tokens on which criterion and ratio decide differently: of those each keeps, how many grow further apart (unsafe keep, per seed) and how many come closer (contraction, all seeds together)?"));
  panel.append(table([
    ["criterion", "tokens per seed", "unsafe keep %", "ratio's %", "difference", "p", "lower in seeds", "contraction %", "ratio's %"],
    ...study.criteria.filter((c) => c.disagreements).map((c) => {
      const d = c.disagreements;
      const difference = d.unsafe_keep_minus_ratio;
      return [criterionName(c.name), plusMinus(d.count, (x) => number(x, 3)), plusMinus(d.unsafe_keep, inPercent), plusMinus(d.ratio_unsafe_keep, inPercent),
        plusMinus(difference, inPercent), pValue(difference.p), `${difference.below} of ${difference.seeds}`,
        d.contraction === null ? "–" : inPercent(d.contraction), d.ratio_contraction === null ? "–" : inPercent(d.ratio_contraction)];
    }),
  ]));
}

function ecdfChart(grid, study) {
  const shown = study.criteria.filter((c) => c.disagreements && c.disagreements.ecdf.length);
  if (!shown.length) return;
  const lines = shown.map((c, i) => ({ label: criterionName(c.name), color: `var(--run${i})`, points: c.disagreements.ecdf, exact: true }));
  lines.push({ label: "ratio", color: "var(--run7)", points: shown[0].disagreements.ratio_ecdf, dash: [5, 4], exact: true });
  curveChart(grid, {
    title: "Change of D on kept disagreements",
    about: "Share of tokens whose D changed by at most this; left of zero the divergence contracted.",
    lines, xTitle: "ΔD after one update", yTitle: "share of tokens", legend: true,
  });
}
// The paper's paired lines: one from the ratio to the criterion for each seed that has both rates, and their mean.
function unsafeKeepChart(grid, criterion) {
  const seeds = (criterion.per_seed || []).filter((s) => s.unsafe_keep !== null && s.ratio_unsafe_keep !== null);
  if (!seeds.length) return;
  const line = (rows) => ["ratio_unsafe_keep", "unsafe_keep"].map((key, x) => [x, rows.reduce((sum, s) => sum + s[key], 0) / rows.length]);
  const lines = seeds.map((s) => ({ label: null, color: "var(--line)", points: line([s]), exact: true }));
  lines.push({ label: `mean of ${seeds.length} seeds`, color: "var(--run0)", points: line(seeds), exact: true });
  const d = criterion.disagreements.unsafe_keep_minus_ratio;
  curveChart(grid, {
    title: `Unsafe keep, seed by seed: ${criterionName(criterion.name)}`,
    about: `Share of the kept disagreement tokens whose D grew, under the ratio mask (left) and under this one (right); lower in ${d.below} of ${d.seeds} seeds.`,
    lines, percentages: true, xTitle: "0: ratio, 1: predicted", yTitle: "unsafe keep",
  });
}
function partsChart(grid, study) {
  const parts = study.decomposition;
  if (!parts || !parts.points.length) return;
  const point = (index) => parts.points.map((p) => ({ x: p[5], y: p[index], step: "", a: null }));
  scatterChart(grid, {
    title: "First order against the real change",
    about: `${count(parts.tokens)} outside tokens: the oracle, ∇D · whole update, has the sign of the real change on ${parts.oracle_sign_accuracy === null ? "–" : percent(parts.oracle_sign_accuracy)}.`,
    sets: [
      { label: "whole update", color: "var(--run0)", shape: "circle", radius: 3, points: point(4) },
      { label: "own gradient", color: "var(--run1)", shape: "triangle", radius: 4, points: point(0) },
    ],
    x: { title: "real change of D", short: "real" },
    y: { title: "first-order change", short: "first order" },
    lines: [{ axis: "x", at: 0, label: "" }, { axis: "y", at: 0, label: "" }],
    plain: true,
  });
}
function partsTable(panel, study) {
  const parts = study.decomposition;
  if (!parts) return;
  const size = parts.median_size;
  panel.append(el("h3", "What moves a token"), el("p.soft.small", `Median size of each cause's first-order part of the change of D, over ${count(parts.tokens)} outside tokens. The momentum's part of the update has cosine ${plusMinus(parts.momentum_cosine, (x) => x.toFixed(2))} with the whole.`));
  panel.append(table([["momentum", "other tokens", "own gradient", "weight decay"], [size.momentum, size.others, size.own, size.weight_decay].map((x) => number(x, 3))]));
}

function showAnalysis(run) {
  const a = run.analysis;
  if (!Array.isArray(a.divergences)) throw new Error("no divergences");
  const section = addSection(`analysis-${run.index}`, RUNS.length > 1 ? `Analysis: ${run.label}` : "Analysis",
    `From the same state, one real update under each criterion's mask, and D again on the tokens that were outside. ${a.seeds.length} seeds of ${count(a.sequences)} responses, ${count(a.measured_sequences)} of them measured after ${a.preceding} preceding minibatches and ${a.warmup} steps.`);
  for (const study of a.divergences) {
    const panel = el("div.panel");
    panel.append(el("h3", attr({ style: "font-size:1.1rem;margin-bottom:.4rem" }), `${divergenceName(study.divergence)}: ${count(study.outside_total)} of ${count(study.tokens)} tokens outside δ = ${study.delta}`));
    if (!study.outside_total) {
      panel.append(el("p.soft", "No token was outside by this divergence: lower mask.delta, or bring the policies further apart (precision, learning rate, staleness, preceding minibatches)."));
    } else {
      studyTables(panel, study);
      partsTable(panel, study);
    }
    section.append(panel);
    const grid = el("div.grid.wide", attr({ style: "margin:.9rem 0 1.4rem" }));
    section.append(grid);
    if (study.outside_total) {
      ecdfChart(grid, study);
      for (const criterion of study.criteria) {
        if (criterion.disagreements) unsafeKeepChart(grid, criterion);
      }
      partsChart(grid, study);
    }
  }
}

const FEW_SEEDS = 5;
const COMPARED = [
  ["accuracy", "Held-out accuracy", "mean over seeds", true],
  ["reward", "Reward", "training responses, mean over seeds", false],
  ["response_length", "Response length", "tokens", false],
  ["ppo_kl", "PPO-KL", "mean of log μ − log π", false],
  ["clip_fraction", "Clip fraction", "share of tokens masked", true],
];
function showComparison(run) {
  const c = run.compare;
  if (!Array.isArray(c.arms)) throw new Error("no arms");
  const section = addSection(`compare-${run.index}`, RUNS.length > 1 ? `Comparison: ${run.label}` : "Comparison",
    `The same start, data order and seeds under each mask: ${c.seeds.length} seeds of ${count(c.steps)} steps. ${c.seeds.length < LEAST_SEEDS
      ? "Means, of two seeds with both values;" : `Means with ${Math.round(1000 * c.level) / 10}% intervals (Student's t over seeds; shaded in the charts);`} differences and their p (paired t test) are paired by seed, against ${asText(c.baseline)}.`);
  const unfinished = c.arms.flatMap((arm) => arm.runs.filter((r) => !r.finished).map((r) => `${arm.name}, seed ${r.seed}: ${r.note}`));
  const few = c.seeds.length < FEW_SEEDS ? [`${c.seeds.length === 1 ? "One seed says" : `${c.seeds.length} seeds say`} little; take at least ${FEW_SEEDS}.`] : [];
  const notes = noteBox([...few, ...unfinished]);
  if (notes) section.append(notes);
  const show = (x) => inPercent(x);
  const rules = c.arms.map((arm) => parseRule(asText(arm.rule)));
  section.append(el("div.panel.words", el("h3", "Arms"), table([
    ["arm", "mask", "runs"],
    ...c.arms.map((arm, i) => [arm.name, maskName(rules[i]) || asText(arm.rule), runLinks(run, arm)]),
  ])));
  section.append(el("div.panel", attr({ style: "margin-top:.9rem" }), table([
    ["arm", "final accuracy %", "against baseline", "p", "area under curve %", "against baseline", "p", "collapses"],
    ...c.arms.map((arm) => {
      const d = arm.minus_baseline;
      return [arm.name, interval(arm.final_accuracy, show), d ? interval(d.final_accuracy, show) : "", d ? pValue(d.final_accuracy.p) : "",
        interval(arm.auc_accuracy, show), d ? interval(d.auc_accuracy, show) : "", d ? pValue(d.auc_accuracy.p) : "", `${arm.collapses} of ${arm.runs.length}`];
    }),
  ]), el("h3", attr({ style: "margin-top:1rem" }), "At the end of training"), table([
    ["arm", "reward", "response length", "PPO-KL", "clip fraction %", "outside %"],
    ...c.arms.map((arm, i) => [arm.name, interval(arm.reward, (x) => number(x, 3)), interval(arm.response_length, (x) => number(x, 3)), interval(arm.ppo_kl, (x) => number(x, 3)),
      interval(arm.clip_fraction, (x) => (100 * x).toFixed(2)), measureOf(rules[i]) ? `${interval(arm.outside, (x) => (100 * x).toFixed(2))} by ${measureOf(rules[i])}` : "–"]),
  ])));
  const legend = el("div.legend.small", attr({ style: "margin:.8rem 0" }));
  c.arms.forEach((arm, i) => legend.append(el("span", el("span.dot", attr({ style: `background:var(--run${i % 8})` })), arm.name)));
  section.append(legend);
  const grid = el("div.grid");
  section.append(grid);
  const curves = (key, arms, options) => {
    const lines = arms.filter((i) => c.arms[i].curves[key] && c.arms[i].curves[key].x.length).map((i) => {
      const curve = c.arms[i].curves[key];
      return { label: asText(c.arms[i].name), color: `var(--run${i % 8})`, dash: i < 8 ? [] : [5, 4], points: curve.x.map((x, k) => [x, curve.mean[k]]),
        band: c.seeds.length < LEAST_SEEDS ? null : curve.x.map((x, k) => [x, curve.low[k], curve.high[k]]) };
    });
    if (lines.length) lineChart(grid, { ...options, lines });
  };
  const all = c.arms.map((_, i) => i);
  for (const [key, title, about, percentages] of COMPARED) curves(key, all, { title, about, percentages });
  for (const measure of new Set(rules.map(measureOf))) {
    if (measure === null) continue;
    curves("outside", all.filter((i) => measureOf(rules[i]) === measure), { title: `Outside by ${measure}`, about: "share of tokens beyond the threshold", percentages: true });
  }
}

// The seeds of an arm, each a link to its run's page where there is one (report.cc).
function runLinks(run, arm) {
  const pages = new Set(run.run_pages || []);
  const list = el("span");
  arm.runs.forEach((each, i) => {
    const path = [arm.name, `seed-${each.seed}`, "report.html"];
    const href = [...(run.path_from_page || []), ...path].map((part) => encodeURIComponent(asText(part))).join("/");
    const seed = `seed ${asText(each.seed)}`;
    list.append(i ? ", " : "", pages.has(path.slice(0, 2).join("/")) ? el("a", attr({ href }), seed) : seed);
  });
  return list;
}

// A study's file may be of another kind than this page expects; the rest of the page must not suffer.
function showStudies() {
  for (const run of RUNS) {
    for (const [key, show] of [["analysis", showAnalysis], ["compare", showComparison], ["frontier", showFrontier]]) {
      if (!run[key]) continue;
      const sections = document.querySelectorAll("section").length;
      try {
        show(run);
      } catch {
        [...document.querySelectorAll("section")].slice(sections).forEach((s) => {
          document.querySelector(`nav a[href="#${s.id}"]`).remove();
          s.remove();
        });
        document.getElementById("summary").append(noteBox([`${run.label}: ${key}.json is not what this page reads, and is left out.`]));
      }
    }
  }
}
