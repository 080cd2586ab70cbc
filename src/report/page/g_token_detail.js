// What is known about one token: figures, the reason, and both distributions as paired bars.
function bar(kind, value, largest) {
  const width = largest > 0 ? (100 * value) / largest : 0;
  return el(`i.${kind}`, attr({ style: `width:${Math.max(width, 0).toFixed(2)}%` }));
}
function bars(token) {
  const rows = token.support.map((atom, i) => ({ ...atom, sampled: i === 0 }));
  rows.sort((a, b) => b.mu - a.mu);
  const largest = Math.max(token.muTail, token.piTail, ...rows.flatMap((r) => [r.mu, r.pi]));
  const grid = el("div.bars");
  const add = (name, mu, pi, sampled) => {
    const label = el(sampled ? "div.name.sampled" : "div.name", attr({ title: sampled ? "the sampled token" : "" }));
    if (sampled) label.append("▸ ");
    if (typeof name === "string") appendText(label, name, false);
    else label.append(name);
    grid.append(label, el("div.pair", bar("mu", mu, largest), bar("pi", pi, largest)));
    grid.append(el("div.num", el("div", attr({ "data-mu": mu }), number(mu, 3)), el("div", attr({ "data-pi": pi }), number(pi, 3))));
  };
  rows.forEach((row) => add(row.text, row.mu, row.pi, row.sampled));
  add(el("i.soft", "all others"), token.muTail, token.piTail, false);
  return grid;
}
function figure(label, value, key) {
  return el("div", el("span", label), el("b", attr({ "data-key": key }), value));
}

function tokenDetail(token, response, position) {
  const box = el("div");
  const title = el("h3", `Token ${position + 1}: `, quoted(token.text), el("span.soft.small", `  id ${token.id}`));
  const state = el("p.small", attr({ style: "margin:.2rem 0" }), el(`span.${decisionClasses(token).join(".")}`, ` ${decisionName(token)} `));
  box.append(title, state, el("p.reason", attr({ "data-key": "reason" }), reason(token, response)));
  if (token.missing) return box;
  const rule = parseRule(response.rule);
  const measure = measureOf(rule);
  const changed = rule.proximity === "ratio" || rule.proximity === "none" ? "Ḋ of KL" : "Ḋ"; // such a rule predicts KL's
  box.append(
    el(
      "div.figures",
      figure("ratio r", number(token.ratio), "ratio"),
      measure ? figure(rule.proximity === "ratio" ? measure : `divergence D (${measure})`, number(token.divergence), "divergence") : null,
      figure("advantage A", signed(token.advantage), "advantage"),
      figure(`${changed}, local`, signed(token.local), "local"),
      figure(`${changed}, global`, signed(token.global), "global"),
      figure(`${changed}, predicted`, signed(token.local + token.global), "predicted"),
    ),
  );
  if (!token.support.length) {
    box.append(el("p.soft.small", "The distributions of this token were left out to keep the page small."));
    return box;
  }
  box.append(
    el("div.bar-key", el("span", el("i.mu", attr({ style: "background:repeating-linear-gradient(135deg,var(--mu) 0 2px,transparent 2px 4px);border:1px solid var(--mu)" })), "μ, sampled from"), el("span", el("i.pi", attr({ style: "background:var(--pi)" })), "π, in training")),
    bars(token),
  );
  return box;
}
