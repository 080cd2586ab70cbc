// The token viewer: responses with each token marked by its decision; filters, search, keys.
const PAGE_SIZE = 12;
const viewer = { run: null, step: "", source: "", masked: false, disagree: false, query: "", page: 0, chosen: null };

function withTokens() {
  return RUNS.filter((run) => run.tokens);
}
function tokensOf(run, response) {
  if (!response.unpacked) response.unpacked = response.tokens.map((t) => unpack(t, run.tokens.vocabulary));
  return response.unpacked;
}
function textOf(run, response) {
  if (response.text === undefined) response.text = tokensOf(run, response).map((t) => t.text).join("");
  return response.text;
}
// Which tokens the filters ask for; all of them without one.
function wanted(token) {
  if (!viewer.masked && !viewer.disagree) return true;
  return (viewer.masked && token.masked) || (viewer.disagree && token.disagree);
}
function matches(run, response) {
  if (viewer.step !== "" && response.step !== Number(viewer.step)) return false;
  if (viewer.source !== "" && response.source !== viewer.source) return false;
  if ((viewer.masked || viewer.disagree) && !tokensOf(run, response).some(wanted)) return false;
  const query = viewer.query.toLowerCase();
  return !query || response.prompt.toLowerCase().includes(query) || textOf(run, response).toLowerCase().includes(query);
}
// Tokens that the search text touches, as a set of positions.
function hits(run, response) {
  const found = new Set();
  const query = viewer.query.toLowerCase();
  if (!query) return found;
  const tokens = tokensOf(run, response);
  const owner = [];
  tokens.forEach((token, i) => {
    for (let k = 0; k < token.text.length; ++k) owner.push(i);
  });
  const text = textOf(run, response).toLowerCase();
  if (text.length !== owner.length) return found; // a letter whose lower case is longer
  for (let at = text.indexOf(query); at >= 0; at = text.indexOf(query, at + 1)) {
    for (let k = at; k < at + query.length; ++k) found.add(owner[k]);
  }
  return found;
}

function responseCard(run, response) {
  const tokens = tokensOf(run, response);
  const outside = tokens.filter((t) => t.outside).length;
  const masked = tokens.filter((t) => t.masked).length;
  const disagree = tokens.filter((t) => t.disagree).length;
  const head = el("header");
  const fact = (name, value) => head.append(el("span", name + " ", el("b", value)));
  fact("step", String(response.step));
  if (response.source) fact("source", response.source);
  fact("reward", number(response.reward));
  fact("advantage", signed(response.advantage));
  if (response.finish) fact("finish", response.finish);
  fact("tokens", response.length > tokens.length ? `${tokens.length} of ${response.length}` : String(tokens.length));
  fact("outside", String(outside));
  fact("masked", String(masked));
  fact("disagree", String(disagree));
  const card = el("article.panel.response", head);
  const prompt = el("div.prompt", attr({ "aria-label": "Prompt" }));
  appendText(prompt, response.prompt, true);
  if (response.prompt) card.append(prompt);
  const flow = el("div.tokens", attr({ role: "group", "aria-label": "Response" }));
  const found = hits(run, response);
  tokens.forEach((token, i) => {
    const span = el("span", attr({ tabindex: "-1", role: "button", "aria-label": `${token.text} (${decisionName(token)})` }));
    span.className = decisionClasses(token).join(" ");
    if (!wanted(token)) span.classList.add("dim");
    if (found.has(i)) span.classList.add("hit");
    appendText(span, token.text, true);
    span.augur = { response, token, position: i };
    flow.append(span);
  });
  card.append(flow);
  if (response.answer) {
    const answer = el("p.soft.small", attr({ style: "margin:.5rem 0 0" }), "answer ");
    answer.append(quoted(response.answer));
    card.append(answer);
  }
  return card;
}

const view = {}; // the parts of the section that change
function showResponses() {
  const run = viewer.run;
  const all = run.tokens.responses.filter((r) => matches(run, r));
  const pages = Math.max(1, Math.ceil(all.length / PAGE_SIZE));
  viewer.page = Math.min(viewer.page, pages - 1);
  const shown = all.slice(viewer.page * PAGE_SIZE, (viewer.page + 1) * PAGE_SIZE);
  view.list.replaceChildren(...shown.map((r) => responseCard(run, r)));
  if (!shown.length) view.list.append(el("p.soft", "No response fits these filters."));
  const held = run.tokens.responses.length;
  const recorded = run.tokens.recorded;
  view.count.textContent = `${count(all.length)} of ${count(held)} responses` + (recorded > held ? `, sampled from ${count(recorded)}` : "");
  view.pager.classList.toggle("hidden", pages === 1);
  view.pageName.textContent = `page ${viewer.page + 1} of ${pages}`;
  const firstToken = view.list.querySelector(".tok:not(.dim)");
  if (firstToken) firstToken.tabIndex = 0;
  choose(null, false);
}

function choose(span, focus) {
  if (viewer.chosen) {
    viewer.chosen.classList.remove("chosen");
    viewer.chosen.tabIndex = -1;
  }
  viewer.chosen = span;
  view.detail.classList.toggle("empty", !span);
  if (!span) {
    view.body.replaceChildren(el("p.soft.small", "Point at a token, or walk with the arrow keys, to see why it was kept or masked."));
    return;
  }
  span.classList.add("chosen");
  span.tabIndex = 0;
  const { token, response, position } = span.augur;
  view.body.replaceChildren(tokenDetail(token, response, position));
  if (focus) {
    span.focus({ preventScroll: true });
    span.scrollIntoView({ block: "nearest" });
  }
}

// Opens at the first token that was masked, or else was outside; on a narrow page, where the token would cover half of
// it, without choosing it.
function showFirstMasked() {
  const run = viewer.run;
  const all = run.tokens.responses.filter((r) => matches(run, r));
  for (const test of [(token) => token.masked, (token) => token.outside]) {
    const at = all.findIndex((r) => tokensOf(run, r).some(test));
    if (at < 0) continue;
    viewer.page = Math.floor(at / PAGE_SIZE);
    showResponses();
    const found = [...view.list.querySelectorAll(".tok")].find((s) => s.augur && test(s.augur.token));
    if (!matchMedia("(max-width: 820px)").matches) choose(found, false);
    return;
  }
  showResponses();
}

// Moves among the tokens the filters want; by `test` among those it accepts.
function step(by, test = () => true) {
  const spans = [...view.list.querySelectorAll(".tok:not(.dim)")].filter((s) => s.augur);
  let at = viewer.chosen ? spans.indexOf(viewer.chosen) : by > 0 ? -1 : spans.length;
  if (viewer.chosen && at < 0) at = by > 0 ? -1 : spans.length;
  for (at += by; at >= 0 && at < spans.length; at += by) {
    if (test(spans[at].augur.token)) return choose(spans[at], true);
  }
}
function stepResponse(by) {
  const cards = [...view.list.querySelectorAll(".response")];
  const now = viewer.chosen ? cards.indexOf(viewer.chosen.closest(".response")) : by > 0 ? -1 : cards.length;
  for (let at = now + by; at >= 0 && at < cards.length; at += by) {
    const target = cards[at].querySelector(".tok:not(.dim)");
    if (target) return choose(target, true);
  }
}
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    const was = viewer.chosen;
    choose(null, false);
    if (was) was.tabIndex = 0;
    return;
  }
  const field = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "/" && !field) {
    event.preventDefault();
    view.search.focus();
    return;
  }
  if (field || !view.section.contains(event.target)) return;
  const moves = {
    ArrowRight: () => step(1),
    ArrowLeft: () => step(-1),
    ArrowDown: () => stepResponse(1),
    ArrowUp: () => stepResponse(-1),
    m: () => step(1, (t) => t.masked),
    M: () => step(-1, (t) => t.masked),
    d: () => step(1, (t) => t.disagree),
    D: () => step(-1, (t) => t.disagree),
  };
  if (!moves[event.key]) return;
  event.preventDefault();
  moves[event.key]();
}

function option(value, text) {
  return el("option", attr({ value }), text);
}
function fillSources(sources) {
  view.source.replaceChildren(option("", "all sources"), ...sources.map((s) => option(s, s || "(none)")));
  view.source.parentElement.classList.toggle("hidden", sources.length < 2);
}
function fillChoices() {
  const responses = viewer.run.tokens.responses;
  if (DATA.live) return fillLiveSteps();
  const steps = [...new Set(responses.map((r) => r.step))].sort((a, b) => a - b);
  const sources = [...new Set(responses.map((r) => r.source))].sort();
  view.step.replaceChildren(option("", "all steps"), ...steps.map((s) => option(String(s), `step ${s}`)));
  fillSources(sources);
  viewer.step = viewer.source = "";
  viewer.page = 0;
}

function viewerTools() {
  const change = (action) => () => {
    action();
    viewer.page = 0;
    showResponses();
  };
  const check = (name, text) => {
    const box = el("input", attr({ type: "checkbox", id: "only-" + name }));
    box.addEventListener("change", change(() => (viewer[name] = box.checked)));
    return el("label.small", box, text);
  };
  view.runChoice = el("select", attr({ id: "token-run", "aria-label": "Run" }));
  withTokens().forEach((run) => view.runChoice.append(option(String(run.index), run.label)));
  view.runChoice.addEventListener("change", () => {
    viewer.run = RUNS[Number(view.runChoice.value)];
    fillChoices();
    showFirstMasked();
  });
  view.step = el("select", attr({ id: "token-step", "aria-label": "Step" }));
  view.step.addEventListener("change", DATA.live ? () => loadStep(view.step.value) : change(() => (viewer.step = view.step.value)));
  view.source = el("select", attr({ id: "token-source", "aria-label": "Data source" }));
  view.source.addEventListener("change", change(() => (viewer.source = view.source.value)));
  view.search = el("input", attr({ type: "search", id: "token-search", placeholder: "Search prompts and responses", "aria-label": "Search" }));
  view.search.addEventListener("input", change(() => (viewer.query = view.search.value)));
  view.count = el("span.soft.small", attr({ id: "token-count", "aria-live": "polite" }));
  const turn = (by) => () => {
    viewer.page = Math.max(0, viewer.page + by);
    showResponses();
  };
  const back = el("button", attr({ type: "button" }), "‹ previous");
  const forth = el("button", attr({ type: "button" }), "next ›");
  back.addEventListener("click", turn(-1));
  forth.addEventListener("click", turn(1));
  view.pageName = el("span.small.soft");
  view.pager = el("span.pager", back, view.pageName, forth);
  const several = withTokens().length > 1;
  return el("div.tools", several ? el("span", view.runChoice) : null, el("span", view.step), el("span", view.source),
    check("masked", "Masked only"), check("disagree", "Disagreements only"), view.search, view.count);
}

function showViewer() {
  if (!withTokens().length) return;
  viewer.run = withTokens()[0];
  view.section = addSection("tokens", "Tokens", "Responses as they were trained on, each token marked by the mask's decision.");
  view.section.append(
    el("div.key", el("span.tok", "inside"), el("span.tok.kept", "kept, outside"), el("span.tok.masked", "masked"), el("span.tok.disagree", "criteria disagree"),
      el("span.soft", el("kbd", "←"), " ", el("kbd", "→"), " tokens  ", el("kbd", "↑"), " ", el("kbd", "↓"), " responses  ", el("kbd", "m"), " masked  ", el("kbd", "d"), " disagreements  ", el("kbd", "/"), " search  ", el("kbd", "Esc"), " close")),
  );
  view.section.append(viewerTools());
  view.list = el("div", attr({ id: "responses" }));
  view.body = el("div", attr({ id: "token-detail", "aria-live": "polite" }));
  const close = el("button.close", attr({ type: "button", "aria-label": "Close" }), "×");
  close.addEventListener("click", () => choose(null, false));
  view.detail = el("aside.panel.detail.empty", attr({ "aria-label": "Token" }), close, view.body);
  view.section.append(el("div.viewer", el("div", view.list, view.pager), view.detail));
  const onToken = (event) => {
    const span = event.target.closest(".tok");
    if (span && span.augur && span !== viewer.chosen) choose(span, event.type === "click");
  };
  view.list.addEventListener("mouseover", onToken);
  view.list.addEventListener("focusin", onToken);
  view.list.addEventListener("click", onToken);
  document.addEventListener("keydown", onKey);
  fillChoices();
  showFirstMasked();
}
