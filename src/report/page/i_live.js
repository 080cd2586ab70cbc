// The live page (augur watch): asks its server what is new and puts it where the old stood. What the reader has chosen,
// smoothing, metric, filters, the open token, stays.
const POLL_MILLISECONDS = 2000;
const SECTIONS = [
  ["summary", showSummary],
  ["curves", showCurves],
  ["mask", showMask],
  ["mismatch", showMismatch],
  ["tokens", showViewer],
  ["more", showMore],
];

// A run's tokens are fetched step by step.
function withoutTokens(run) {
  if (run.token_steps && !run.tokens) run.tokens = { recorded: 0, vocabulary: {}, responses: [] };
}
if (DATA.live) RUNS.forEach(withoutTokens);

function fillLiveSteps() {
  const chosen = viewer.run.tokens.responses.length ? String(viewer.run.tokens.responses[0].step) : "";
  const steps = viewer.run.token_steps.map(String);
  if (chosen && !steps.includes(chosen)) steps.push(chosen);
  if (steps.join() !== [...view.step.options].map((o) => o.value).join()) {
    view.step.replaceChildren(...steps.map((s) => option(s, `step ${s}`)));
  }
  view.step.value = chosen || steps[steps.length - 1];
  viewer.step = "";
  if (!chosen) loadStep(view.step.value);
}
// Relative, so that the page also works behind a proxy's prefix.
const TOKEN = new URLSearchParams(location.search).get("token");
function ask(what, query) {
  return fetch(`${what}?${query}${TOKEN ? "&token=" + encodeURIComponent(TOKEN) : ""}`);
}
async function loadStep(step) {
  const run = viewer.run;
  const answer = await ask("tokens.json", `run=${run.index}&step=${step}`);
  const found = answer.ok ? await answer.json() : null;
  if (!found || run !== viewer.run) return;
  run.tokens = found;
  fillSources([...new Set(found.responses.map((r) => r.source))].sort());
  viewer.source = "";
  viewer.page = 0;
  fillLiveSteps();
  showFirstMasked();
}

// The charts of an old section go with it.
function dropCharts(section) {
  for (let i = charts.length - 1; i >= 0; --i) {
    if (!section.contains(charts[i].canvas)) continue;
    redraw.splice(redraw.indexOf(charts[i].update), 1);
    charts[i].chart.destroy();
    charts.splice(i, 1);
  }
}
// Makes a section again in its place; one that was not there before comes in the order of SECTIONS.
function remake(id, show) {
  const old = document.getElementById(id);
  const link = document.querySelector(`#nav a[href="#${id}"]`);
  const open = old ? [...old.querySelectorAll("details")].map((d) => d.open) : [];
  if (old) dropCharts(old);
  if (old) old.removeAttribute("id");
  if (link) link.remove();
  show();
  const made = document.getElementById(id);
  if (!made) return old && old.remove();
  const nav = document.getElementById("nav");
  const later = SECTIONS.slice(SECTIONS.findIndex(([name]) => name === id) + 1).map(([name]) => name);
  const next = later.map((name) => document.getElementById(name)).find(Boolean);
  if (old) old.replaceWith(made);
  else if (next) next.before(made);
  const before = later.map((name) => nav.querySelector(`a[href="#${name}"]`)).find(Boolean);
  if (before) before.before(nav.lastElementChild);
  made.querySelectorAll("details").forEach((d, i) => (d.open = Boolean(open[i])));
}

function remakeCurves() {
  shownMetrics.clear();
  const metric = document.getElementById("metric");
  const chosen = metric && metric.value;
  for (const [id, show] of SECTIONS) if (["curves", "mask", "mismatch", "more"].includes(id)) remake(id, show);
  const slider = document.getElementById("smoothing");
  if (slider) {
    slider.value = smoothing;
    slider.nextElementSibling.textContent = slider.value;
  }
  const again = document.getElementById("metric");
  if (again && chosen && [...again.options].some((o) => o.value === chosen)) {
    again.value = chosen;
    again.dispatchEvent(new Event("change"));
  }
}

// What decides which charts there are.
function chartNames() {
  return JSON.stringify([metricNames(), RUNS.map((run) => [Boolean(run.points), measureOf(ruleOf(run))])]);
}

function takeNews(runs) {
  const names = chartNames();
  runs.forEach((news, i) => {
    if (!news) return;
    const { tokens, ...facts } = news;
    Object.assign(RUNS[i], facts);
    withoutTokens(RUNS[i]);
  });
  remake("summary", showSummary);
  if (chartNames() !== names) remakeCurves();
  else {
    charts.forEach((holder) => holder.renew());
    redraw.forEach((draw) => charts.some((holder) => holder.update === draw) || draw());
  }
  if (!view.section) showFirstTokens();
  else if (viewer.run.token_steps) fillLiveSteps();
}
function showFirstTokens() {
  if (withTokens().length) remake("tokens", showViewer);
}

let lost = false;
async function poll() {
  try {
    const answer = await ask("runs.json", "since=" + RUNS.map((run) => run.version).join(","));
    const { runs } = await answer.json();
    if (runs.some(Boolean)) takeNews(runs);
    lost = false;
  } catch {
    lost = true;
  }
  document.getElementById("footer").textContent = lost ? "augur watch has ended: this is what it showed last." : "Live, by augur watch.";
  setTimeout(poll, POLL_MILLISECONDS);
}
function startLive() {
  if (DATA.live) setTimeout(poll, POLL_MILLISECONDS);
}
