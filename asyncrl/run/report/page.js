"use strict";

// Charts: the training step under the pointer is marked in all of them, and their legends have its values.
const charts = [...document.querySelectorAll(".chart:not(.histogram)")].map(chart);
const overSteps = () => charts.filter((each) => each.overSteps && each.figure.offsetParent);
const marked = { episodes: () => {}, explain: null };

function markStep(step) {
  for (const each of overSteps()) if (step === null) each.clear(); else each.mark(step);
  marked.episodes(step);
}

function chart(figure) {
  const plot = figure.querySelector(".plot"), cursor = figure.querySelector(".cursor"), at = figure.querySelector(".at");
  const values = [...figure.querySelectorAll(".legend b")];
  const first = +figure.dataset.first, last = +figure.dataset.last;
  const across = figure.dataset.across ?? "training step";
  const told = (x) => across === "training step" ? `step ${Math.round(x)}` : `${number(x)} ${across}`;
  const nearest = (places, x) => places.reduce((best, place, i) => Math.abs(place - x) < Math.abs(places[best] - x) ? i : best, 0);
  const lines = () => [...figure.querySelectorAll("polyline:not(.smooth, .part)")].map((line) => {
    const points = line.getAttribute("points").split(" ").map((pair) => pair.split(",").map((n) => n / 10000));
    const low = +figure.dataset.low, high = +figure.dataset.high;
    return { x: points.map((p) => p[0]), told: points.map((p) => number(high - p[1] * (high - low))) };
  });
  const bands = () => {
    const x = figure.dataset.steps.split(",").map((step) => (step - first) / Math.max(last - first, 1));
    return [...figure.querySelectorAll("polygon")].map((band) => ({ x, told: band.dataset.shares.split(",").map((n) => `${Math.round(n / 10)} %`) }));
  };
  const timeline = figure.classList.contains("timeline");
  let known = null;
  const series = () => known ??= timeline ? bands() : lines();
  const place = (x) => (x - first) / Math.max(last - first, timeline ? 1 : Number.EPSILON);
  const toldAt = (x) => series().map((each) => each.told[nearest(each.x, place(x))]);
  const mark = (x) => {
    cursor.hidden = x < first || x > last;
    cursor.style.left = `${place(x) * 100}%`;
    at.textContent = told(x);
    toldAt(x).forEach((value, i) => { values[i].textContent = value; });
  };
  const clear = () => {
    cursor.hidden = true;
    at.textContent = across;
    values.forEach((value) => { value.textContent = value.dataset.last; });
  };
  const under = (event) => {
    const box = plot.getBoundingClientRect(), x = series()[0].x;
    return first + x[nearest(x, (event.clientX - box.left) / box.width)] * (last - first);
  };
  const self = { figure, overSteps: across === "training step", timeline, first, last, toldAt, mark, clear };
  plot.addEventListener("pointermove", (event) => self.overSteps ? markStep(Math.round(under(event))) : mark(under(event)));
  plot.addEventListener("pointerleave", () => self.overSteps ? markStep(null) : clear());
  plot.addEventListener("click", (event) => {
    if (!self.overSteps || !marked.explain) return;
    marked.explain(Math.round(under(event)));
    document.getElementById("step").scrollIntoView({ behavior: "smooth", block: "nearest" });
  });
  return self;
}

function number(value) {
  return value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6) ? String(+value.toPrecision(3)) : value.toExponential(2);
}

// Everything that episodes hold enters the page as text, by textContent.
const at = (id) => document.getElementById(id);
const make = (name, text, kind) => Object.assign(document.createElement(name), { textContent: text ?? "", className: kind ?? "" });
const held = at("data") ? JSON.parse(at("data").textContent) : { runs: [], episodes: [], steps: [] };
const openEpisode = held.episodes.length ? viewer(held) : () => {};
if (at("step")) explainer();

// What happened in one training step: its values, who waited, what was trained, which tokens moved the policy, its episodes.
function explainer() {
  const shown = charts.filter((each) => each.overSteps);
  const first = Math.min(...shown.map((each) => each.first)), last = Math.max(...shown.map((each) => each.last));
  const percent = (share) => `${Math.round(100 * share)} %`;
  const several = held.runs.length > 1;
  Object.assign(at("which"), { min: first, max: last });

  function table(caption, head, rows) {
    const whole = make("div", "", "wide"), made = whole.appendChild(make("table"));
    made.append(make("caption", caption));
    if (head.length) {
      const line = made.appendChild(make("thead")).appendChild(make("tr"));
      line.append(...head.map((text) => make("th", text)));
    }
    const body = made.appendChild(make("tbody"));
    for (const row of rows) {
      const line = body.appendChild(make("tr"));
      line.append(...row.map((cell) => { const made = make("td"); made.append(cell); return made; }));
    }
    return whole;
  }

  const values = (each, step) => {
    const names = [...each.figure.querySelectorAll(".legend li")].map((item) => item.childNodes[1].textContent.trim());
    return each.toldAt(step).map((told, i) => [names[i], told]);
  };
  const title = (each) => each.figure.querySelector("figcaption span").textContent;

  function explain(step) {
    step = Math.min(Math.max(Math.round(step) || first, first), last);
    at("which").value = step;
    const parts = [];
    for (const each of shown.filter((each) => each.timeline && each.figure.closest("#time"))) {
      const waits = values(each, step).filter(([, told]) => told !== "0 %").sort((a, b) => parseInt(b[1]) - parseInt(a[1]));
      parts.push(table(`Who waited: ${title(each)}`, [], waits));
    }
    const curves = shown.filter((each) => !each.timeline && each.figure.closest("#curves, #staleness"));
    parts.push(table("What was measured", [], curves.map((each) =>
      [title(each), values(each, step).map(([name, told]) => name === "last" ? told : `${name} ${told}`).join(", ")])));
    for (const each of held.steps.filter((each) => each.step === step)) {
      const of = several ? ` of ${held.runs[each.run]}` : "";
      parts.push(table(`What was trained${of}`, [], [
        ["kept trajectories", `${each.rows}, of ${each.tasks} tasks`],
        ["their rewards", `${number(each.lowest ?? 0)} to ${number(each.highest ?? 0)}, mean ${number(each.mean ?? 0)}`],
        ["their tokens", `${each.up} made more likely, ${each.down} less`],
      ]));
      parts.push(table(`Tokens that moved the policy most${of}`, ["token", "of all pull", "advantage", "weight", "probability", "in"],
        each.tokens.map(([token, text, task, turn, advantage, weight, probability, pull]) =>
          [JSON.stringify(token), percent(pull / each.pull), number(advantage), number(weight), percent(probability), `${task}, turn ${turn}: ${text}`])));
    }
    const episodes = held.episodes.map((episode, i) => [episode, i]).filter(([episode]) => episode.step === step);
    if (episodes.length) parts.push(table("Its episodes in this report", [], episodes.map(([episode, i]) => {
      const link = Object.assign(make("a", `${several ? `${held.runs[episode.run]}: ` : ""}${episode.title}`), { href: "#tokens" });
      link.addEventListener("click", () => openEpisode(i));
      return [link, `reward ${episode.reward === null ? "not finite" : number(episode.reward)}`];
    })));
    if (!held.steps.some((each) => each.step === step)) parts.push(make("p", "No episode of this step was kept.", "note"));
    at("explained").replaceChildren(...parts);
  }

  marked.explain = explain;
  at("which").addEventListener("change", () => explain(+at("which").value));
  at("earlier").addEventListener("click", () => explain(+at("which").value - 1));
  at("later").addEventListener("click", () => explain(+at("which").value + 1));
  explain(held.steps.length ? held.steps[held.steps.length - 1].step : last);
}

// The viewer of tokens; returns what opens an episode.
function viewer(data) {
  const spread = (runs) => runs && runs.flatMap(([value, times]) => Array(times).fill(value));
  const FATE_COLOURS = ["", "k0", "k1", "k4", "k3", "k5"], SIGN = { up: "k2", down: "k3" };
  const ORDERS = {
    reward: (e) => e.reward, best: (e) => -e.reward, gap: (e) => -e.gap, staleness: (e) => -e.staleness, length: (e) => -e.length,
  };
  let order = [], place = 0, tokens = [], spans = [], chosen = -1;

  function unpacked(episode) {
    const versions = spread(episode.versions), fates = spread(episode.fates);
    const advantages = spread(episode.advantages), weights = spread(episode.weights);
    let n = -1;
    return versions.map((version, i) => {
      const token = { text: data.texts[episode.texts[i]], version, fate: fates[i] };
      if (version < 0) return token;
      n += 1;
      token.engine = episode.engine[n];
      if (episode.learner) {
        token.learner = episode.learner[n];
        token.gap = Math.abs(token.learner - token.engine);
      }
      if (advantages) token.advantage = advantages[n];
      if (weights) token.weight = weights[n];
      return token;
    });
  }

  const largest = (name) => tokens.reduce((most, token) => Math.max(most, Math.abs(token[name] ?? 0)), 1e-9);

  // The colour of each token (a class and a strength in percent), and the legend.
  function colours(by, episode) {
    const entry = (kind, told) => [kind, told];
    if (by === "fate") {
      const seen = [...new Set(tokens.map((t) => t.fate))].sort();
      return [(t) => [FATE_COLOURS[t.fate], 26], seen.map((fate) => entry(FATE_COLOURS[fate], data.fates[fate]))];
    }
    if (by === "version") {
      const seen = [...new Set(tokens.filter((t) => t.version >= 0).map((t) => t.version))].sort((a, b) => a - b);
      const kind = (version) => `k${(((episode.version - version) % 8) + 8) % 8}`;
      return [(t) => t.version < 0 ? ["", 0] : [kind(t.version), 30], seen.map((v) => entry(kind(v), `version ${v}, staleness ${episode.version - v}`))];
    }
    if (by === "gap") {
      const most = largest("gap");
      return [(t) => ["k3", t.gap === undefined ? 0 : 75 * Math.sqrt(t.gap / most)], [entry("k3", `up to ${number(most)} nats`)]];
    }
    if (by === "advantage") {
      const most = largest("advantage");
      return [
        (t) => t.advantage === undefined ? ["", 0] : [t.advantage < 0 ? SIGN.down : SIGN.up, 60 * Math.abs(t.advantage) / most],
        [entry(SIGN.up, "positive"), entry(SIGN.down, "negative"), entry("", `up to ${number(most)}`)],
      ];
    }
    return [
      (t) => t.weight === undefined ? ["", 0] : [t.weight < 1 ? SIGN.down : SIGN.up, Math.min(60, 60 * Math.abs(t.weight - 1))],
      [entry(SIGN.up, "above 1"), entry(SIGN.down, "below 1, 0 if not in the loss")],
    ];
  }

  function paint() {
    const [colour, legend] = colours(at("colour").value, data.episodes[order[place]]);
    spans.forEach((span, i) => {
      const [kind, strength] = colour(tokens[i]);
      span.style.background = kind && strength >= 1 ? `color-mix(in srgb, var(--${kind}) ${Math.round(strength)}%, transparent)` : "";
    });
    at("key").replaceChildren(...legend.map(([kind, told]) => {
      const item = make("li");
      item.append(make("i", "", kind || "waits"), told);
      return item;
    }));
  }

  function show() {
    const episode = data.episodes[order[place]];
    tokens = unpacked(episode);
    chosen = -1;
    at("title").textContent = data.runs.length > 1 ? `${data.runs[episode.run]}: ${episode.title}` : episode.title;
    at("facts").replaceChildren(...episode.facts.flatMap(([name, told]) => [make("dt", name), make("dd", told)]));
    spans = [];
    const parts = [];
    let turn = 0;
    tokens.forEach((token, i) => {
      if (turn < episode.turns.length && i === episode.turns[turn][0]) {
        const [, , reward, about] = episode.turns[turn];
        parts.push(make("div", reward ? `${about}, reward ${number(reward)}` : about, "turn"));
      }
      const span = make("span", token.text.replaceAll("\n", "↵\n") || "·", token.version < 0 ? "given" : "");
      span.dataset.i = i;
      spans.push(span);
      parts.push(span);
      if (turn < episode.turns.length && i === episode.turns[turn][1] - 1) {
        for (const [told, good] of episode.turns[turn][4]) parts.push(make("div", told, good ? "call" : "call failed"));
        turn += 1;
      }
    });
    if (episode.cut) parts.push(make("div", `${episode.cut} more tokens are not in this report; asyncrl show has them all`, "turn"));
    at("text").replaceChildren(...parts);
    at("text").scrollTop = 0;
    at("token").textContent = "Point at a token, or tap it.";
    for (const [i, button] of [...at("list").querySelectorAll("button")].entries()) {
      if (i === place) button.setAttribute("aria-current", "true"); else button.removeAttribute("aria-current");
    }
    paint();
  }

  function tell(i) {
    if (i < 0 || i >= tokens.length) return;
    if (chosen >= 0) spans[chosen].classList.remove("chosen");
    chosen = i;
    spans[i].classList.add("chosen");
    const token = tokens[i], episode = data.episodes[order[place]], told = [`token ${i}`, data.fates[token.fate]];
    if (i < episode.shared) told.push(`a copy of trajectory ${episode.parent}'s`);
    if (token.version >= 0) told.push(`version ${token.version}`, `staleness ${episode.version - token.version}`, `engine ${token.engine} nats`);
    if (token.gap !== undefined) told.push(`learner ${token.learner} nats`, `gap ${number(token.gap)}`);
    if (token.advantage !== undefined) told.push(`advantage ${token.advantage}`);
    if (token.weight !== undefined) told.push(`importance weight ${token.weight}`);
    at("token").replaceChildren(make("strong", JSON.stringify(token.text)), make("div", told.join(" · ")));
  }

  function sort() {
    const key = ORDERS[at("sort").value];
    const known = (e) => Number.isFinite(key(e)) && !(key(e) === 0 && Object.is(key(e), -0) && at("sort").value === "gap" && e.gap === null);
    order = data.episodes.map((_, i) => i).sort((a, b) => {
      const [x, y] = [data.episodes[a], data.episodes[b]];
      return known(y) - known(x) || key(x) - key(y);
    });
    at("list").replaceChildren(...order.map((index, i) => {
      const e = data.episodes[index], item = make("li"), button = make("button", e.title);
      const told = [`reward ${e.reward === null ? "not finite" : number(e.reward)}`, `${e.length} tokens`];
      if (e.gap !== null) told.push(`gap ${number(e.gap)}`);
      const tooStale = e.fates.some(([fate]) => data.fates[fate] === "too stale");
      if (e.staleness) told.push(`staleness ${number(e.staleness)}${tooStale ? "; tokens over the bound entered no loss" : ""}`);
      if (data.runs.length > 1) told.push(data.runs[e.run]);
      button.type = "button";
      button.dataset.step = e.step;
      if (e.step !== null) {
        button.addEventListener("pointerenter", () => markStep(e.step));
        button.addEventListener("pointerleave", () => markStep(null));
      }
      button.append(make("small", told.join(", ")));
      button.addEventListener("click", () => { place = i; show(); });
      item.append(button);
      return item;
    }));
    place = 0;
    show();
  }

  const move = (by) => { place = Math.min(Math.max(place + by, 0), order.length - 1); show(); };
  at("sort").addEventListener("change", sort);
  at("colour").addEventListener("change", paint);
  at("previous").addEventListener("click", () => move(-1));
  at("next").addEventListener("click", () => move(1));
  for (const kind of ["pointerover", "click"]) {
    at("text").addEventListener(kind, (event) => { if (event.target.dataset.i) tell(+event.target.dataset.i); });
  }
  at("text").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by) { tell(chosen + by); event.preventDefault(); }
  });
  sort();
  marked.episodes = (step) => {
    for (const button of at("list").querySelectorAll("button")) button.classList.toggle("here", button.dataset.step === String(step));
  };
  return (index) => { place = order.indexOf(index); show(); };
}
