// What came out, in one card row per run.
function first(points) {
  return points.length ? points[0][1] : null;
}
function last(points) {
  return points.length ? points[points.length - 1][1] : null;
}
function card(label, value, note) {
  return el("div.card", el("div.label", label), el("div.value", value), note ? el("div.note", note) : null);
}
function change(from, to, show) {
  return from === null || from === undefined ? show(to) : `${show(from)} → ${show(to)}`;
}

// What the run came to; nothing where it has gone on since.
function outcome(run) {
  const steps = (run.metrics && run.metrics.steps) || [];
  const summary = run.summary || {};
  return typeof summary.steps === "number" && summary.steps < steps[steps.length - 1] ? {} : summary;
}
function accuracyCard(run) {
  const summary = outcome(run);
  if (typeof summary.before === "number" && typeof summary.after === "number") {
    const points = 100 * (summary.after - summary.before);
    return card("Accuracy", change(summary.before, summary.after, percent), `${signed(Number(points.toFixed(1)))} points`);
  }
  const name = accuracyNames().find((n) => series(run, n).length);
  if (!name) return null;
  const values = series(run, name);
  return card("Accuracy", values.length > 1 ? change(first(values), last(values), percent) : percent(last(values)), accuracySource(name));
}
// The last tenth of a curve, so that one lucky step does not speak for the run.
function lately(run, name) {
  const values = series(run, name);
  if (!values.length) return null;
  const tail = values.slice(-Math.max(1, Math.floor(values.length / 10)));
  return tail.reduce((sum, point) => sum + point[1], 0) / tail.length;
}
function seconds(run) {
  if (typeof outcome(run).train_seconds === "number") return outcome(run).train_seconds;
  const steps = series(run, "timing_s/step"); // of a long run, some of its steps
  if (!steps.length) return null;
  return (steps.reduce((sum, point) => sum + point[1], 0) / steps.length) * steps[steps.length - 1][0];
}

// What a comparison found, in a card for each arm: its accuracy, and how it stands to the first.
function comparisonCards(comparison) {
  const cards = el("div.cards");
  const points = (x) => signed(Number((100 * x).toFixed(1)));
  for (const arm of comparison.arms) {
    const against = arm.minus_baseline && arm.minus_baseline.final_accuracy;
    const note = !against ? "baseline" : against.mean === null ? null
      : `${points(against.mean)} points${against.p === null ? "" : `, p ${against.p < 0.001 ? "< 0.001" : "= " + against.p.toFixed(3)}`}`;
    const final = arm.final_accuracy;
    const both = twoSeeds(final);
    const range = both ? both.map(inPercent).join(" and ") : final.low === null ? null : `[${inPercent(final.low)}, ${inPercent(final.high)}]`;
    cards.append(card(arm.name, percent(final.mean), [range, note].filter(Boolean).join(", ")));
  }
  cards.append(card("Seeds", count(comparison.seeds.length), `of ${count(comparison.steps)} steps`));
  return cards;
}
// What an analysis found: how much was outside, and how often each criterion had the sign right.
function analysisCards(analysis) {
  const cards = el("div.cards");
  for (const study of analysis.divergences) {
    const name = study.divergence.toUpperCase();
    cards.append(card(`Outside by ${name}`, count(study.outside_total), `of ${count(study.tokens)} tokens`));
    for (const criterion of study.outside_total ? study.criteria : []) {
      const right = criterion.prediction.sign_accuracy;
      if (right && right.mean !== null) cards.append(card(`${name}: ${criterionName(criterion.name)}`, percent(right.mean), "signs predicted"));
    }
  }
  return cards;
}
// A study's file may be of another kind than this page expects; its section says so.
function studyCards(run) {
  try {
    if (run.compare) return comparisonCards(run.compare);
    if (run.analysis) return analysisCards(run.analysis);
  } catch {}
  return null;
}

function runCards(run) {
  const cards = studyCards(run) || el("div.cards");
  const add = (node) => node && cards.append(node);
  add(accuracyCard(run));
  const reward = series(run, "critic/score/mean");
  if (reward.length) add(card("Reward", change(first(reward), lately(run, "critic/score/mean"), number), "first step → last tenth"));
  const outside = lately(run, "mask/outside");
  const measure = measureOf(ruleOf(run));
  if (outside !== null && measure) add(card("Outside the region", percent(outside, 2), `of tokens by ${measure}, last tenth`));
  const masked = lately(run, "mask/masked") ?? lately(run, "actor/pg_clipfrac");
  if (masked !== null) add(card("Masked", percent(masked, 2), "of tokens, last tenth"));
  const disagree = lately(run, "mask/disagree");
  if (disagree !== null) add(card("Criteria disagree", percent(disagree, 2), "of tokens, last tenth"));
  const length = lately(run, "response_length/mean");
  if (length !== null) add(card("Response length", number(length, 3), "tokens, last tenth"));
  return cards;
}
function stepsDone(run) {
  if (!run.metrics) return null;
  const steps = run.metrics.steps[run.metrics.steps.length - 1];
  return `${count(steps)} step${steps === 1 ? "" : "s"}${seconds(run) ? " in " + duration(seconds(run)) : ""}`;
}

// What the mask did, in the words that ./quickstart ends with.
function maskSentence(run) {
  const rule = ruleOf(run);
  const ofThousand = (name) => {
    const values = series(run, name);
    return values.length ? ((1000 * values.reduce((sum, point) => sum + point[1], 0)) / values.length).toFixed(2) : null;
  };
  const [outside, masked, disagree] = ["mask/outside", "mask/masked", "mask/disagree"].map(ofThousand);
  if (rule.proximity === "none" || outside === null || masked === null) return null;
  const other = rule.direction === "ratio" ? "the predicted change" : "the ratio";
  return el("p.what", `Of 1,000 tokens ${outside} were outside the trust region; ${masked} were masked, since their update would have led further out.`
    + (disagree === null ? "" : ` On ${disagree} of 1,000 ${other} would have decided otherwise.`));
}

function configDetails(run) {
  const entries = Object.entries(run.config || {}).filter(([, value]) => value !== "");
  if (!entries.length) return null;
  const list = el("dl.config.small");
  entries.forEach(([key, value]) => list.append(el("div", el("dt", key), el("dd.mono", value))));
  return el("details", el("summary.small", "Configuration"), list);
}

// A divergence as people write it; a new one shows under its own name.
const DIVERGENCES = { kl: "KL", tv: "TV", reverse_kl: "reverse KL" };
function divergenceName(name) {
  return Object.hasOwn(DIVERGENCES, name) ? DIVERGENCES[name] : asText(name);
}
// The fields of a configuration's mask, as parseRule gives those of a rule's text.
function ruleOf(run) {
  const fields = Object.entries(run.config || {}).filter(([key]) => key.startsWith("mask."));
  return Object.fromEntries(fields.map(([key, value]) => [key.slice(5), value]));
}
// How a rule measures that a token is outside: values of different measures share no axis. Null for a rule that
// measures nothing; "D" where the rule is unknown.
function measureOf(rule) {
  if (!rule.proximity) return "D";
  if (rule.proximity === "none") return null;
  if (rule.proximity === "ratio") return "|r − 1|";
  return `${rule.support === "binary" ? "binary " : ""}${divergenceName(rule.proximity)}`;
}
function maskName(rule) {
  const get = (key) => rule[key];
  if (!get("proximity")) return null;
  if (get("proximity") === "none") return "no mask";
  const dual = Number(get("dual_clip")) > 0 ? `, dual clip ${get("dual_clip")}` : "";
  if (get("proximity") === "ratio") return `ratio clip [${get("clip_low")}, ${get("clip_high")}]${dual}`;
  const direction = get("direction") === "predicted" ? `predicted (${get("tail")})` : "ratio";
  const budget = Number(get("outside_budget"));
  const region = budget > 0 ? `${percent(budget)} outside` : `δ = ${get("delta")}`;
  return `${get("support")} ${divergenceName(get("proximity"))}, direction ${direction}, ${region}${dual}`;
}

// Which verifier scored which data source.
function scoredBy(run) {
  const names = Object.entries((run.summary && run.summary.verifiers) || {});
  if (!names.length) return null;
  return "scored by " + names.slice(0, 4).map(([source, verifier]) => `${asText(verifier)} (${source})`).join(", ") + (names.length > 4 ? ", …" : "");
}

function runCard(run) {
  const config = run.config || {};
  const facts = [
    config["model.path"] && "model " + config["model.path"],
    (maskName(ruleOf(run)) || config.mask) && "mask " + (maskName(ruleOf(run)) || config.mask),
    config["model.precision"] && "precision " + config["model.precision"],
    config["run.seed"] && "seed " + config["run.seed"],
    stepsDone(run),
    scoredBy(run),
  ].filter(Boolean);
  const head = el("header", el("h3", dot(run), run.label));
  if (run.state) head.append(el("span.state." + run.state.kind, `${run.state.kind}: ${run.state.text}`));
  facts.forEach((fact) => head.append(el("span.soft.small", fact)));
  return el("div.panel.run-card", head, maskSentence(run), noteBox(run.notes), runCards(run), configDetails(run));
}

function showSummary() {
  document.getElementById("headline").textContent =
    RUNS.length === 1 ? RUNS[0].label : `${RUNS.length} runs`;
  const section = addSection("summary", "Summary");
  const notes = noteBox(DATA.notes);
  if (notes) section.append(notes);
  if (!RUNS.length) section.append(el("p", "No runs were given."));
  RUNS.forEach((run) => section.append(runCard(run)));
}
