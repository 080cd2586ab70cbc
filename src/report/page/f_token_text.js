// Tokens as text a reader can see, and the reason of a decision in a sentence.
const KEPT = 1;
const OUTSIDE = 2;
const DISAGREES = 4;
const MISSING = 8;

// The page's token arrays by name; the order is fixed in src/report/viewer_tokens.h.
function unpack(packed, vocabulary) {
  const [id, ratio, divergence, direction, local, global, advantage, flags, muTail, piTail, flat] = packed;
  const support = [];
  for (let i = 0; i < flat.length; i += 3) {
    support.push({ id: flat[i], text: vocabulary[flat[i]] ?? "", mu: flat[i + 1], pi: flat[i + 2] });
  }
  const text = vocabulary[id] ?? "";
  return {
    id, text, ratio, divergence, direction, local, global, advantage, muTail, piTail, support,
    kept: Boolean(flags & KEPT),
    outside: Boolean(flags & OUTSIDE),
    disagree: Boolean(flags & DISAGREES),
    missing: Boolean(flags & MISSING),
    masked: !(flags & KEPT) && !(flags & MISSING),
  };
}

// Characters that would be invisible or move their neighbours: controls, bidirectional marks, byte-order marks.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\u{e0000}-\u{e007f}]/u;
function visible(char) {
  const code = char.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "␡";
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}
// Appends a token's text; what cannot be seen is named, and a line break is both shown and made.
function appendText(node, text, breaks) {
  if (text === "") node.append(el("span.ctl", "∅"));
  let plain = "";
  const flush = () => {
    if (plain) node.append(document.createTextNode(plain));
    plain = "";
  };
  for (const char of text) {
    if (char === "\n" || char === "\t") {
      flush();
      node.append(el("span.ctl", char === "\n" ? "⏎" : "⇥"));
      if (breaks) plain += char;
    } else if (UNSEEN.test(char)) {
      flush();
      node.append(el("span.ctl", visible(char)));
    } else {
      plain += char;
    }
  }
  flush();
}
function quoted(text) {
  const node = el("span.mono");
  node.append("“");
  appendText(node, text, false);
  node.append("”");
  return node;
}

// "proximity=kl direction=predicted ..." as an object.
function parseRule(text) {
  return Object.fromEntries(text.split(" ").filter((w) => w.includes("=")).map((w) => w.split("=")));
}
function threshold(rule, token, delta) {
  const negative = Number(rule.delta_negative);
  return token.advantage < 0 && negative > 0 ? negative : delta;
}
function proximitySentence(rule, token, delta) {
  if (rule.proximity === "none") return "This rule has no trust region";
  if (rule.proximity === "ratio") {
    const low = number(1 - Number(rule.clip_low));
    const high = number(1 + Number(rule.clip_high));
    return `r = ${number(token.ratio)} is ${token.outside ? "outside" : "inside"} [${low}, ${high}]`;
  }
  const limit = number(threshold(rule, token, delta));
  const name = divergenceName(rule.proximity);
  return token.outside
    ? `Outside: D = ${number(token.divergence)} (${name}) exceeds δ = ${limit}`
    : `Inside: D = ${number(token.divergence)} (${name}) is within δ = ${limit}`;
}
function reason(token, response) {
  if (token.missing) return "No support was recorded for this token, so it takes no part in the loss.";
  const rule = parseRule(response.rule);
  const limit = Number(rule.dual_clip);
  if (limit > 0 && token.masked && token.advantage < 0 && token.ratio > limit) {
    return `Dual clip: the advantage is negative and r = ${number(token.ratio)} exceeds ${number(limit)}; its gradient is dropped.`;
  }
  const near = proximitySentence(rule, token, response.delta);
  if (!token.outside) return `${near}; the update passes.`;
  const predicted = rule.direction !== "ratio";
  const product = token.advantage * token.direction;
  const name = predicted ? "A·Ḋ" : "A·(r − 1)";
  let text;
  if (token.advantage === 0) text = `${near}, but the advantage is zero: nothing to mask.`;
  else if (token.masked) text = `${near}, and the update would take it further (${name} = ${signed(product)} > 0): its gradient is dropped.`;
  else text = `${near}, but the update leads back (${name} = ${signed(product)} ≤ 0): it is kept.`;
  if (token.disagree) {
    const other = predicted
      ? `The ratio alone would have ${token.masked ? "kept" : "masked"} it: A·(r − 1) = ${signed(token.advantage * (token.ratio - 1))}.`
      : `The predicted change would have ${token.masked ? "kept" : "masked"} it: A·Ḋ = ${signed(token.advantage * (token.local + token.global))}.`;
    text += " " + other;
  }
  return text;
}
function decisionName(token) {
  if (token.missing) return "no support recorded";
  const name = token.masked ? "masked" : token.outside ? "kept, outside" : "inside";
  return token.disagree ? `${name}; criteria disagree` : name;
}
function decisionClasses(token) {
  const classes = ["tok"];
  if (token.missing) classes.push("missing");
  else if (token.masked) classes.push("masked");
  else if (token.outside) classes.push("kept");
  if (token.disagree) classes.push("disagree");
  return classes;
}
