"use strict";

// Charts: while the pointer is on one, its legend has the values of the training step under it.
for (const figure of document.querySelectorAll(".chart:not(.histogram)")) {
  const plot = figure.querySelector(".plot"), cursor = figure.querySelector(".cursor"), at = figure.querySelector(".at");
  const values = [...figure.querySelectorAll(".legend b")];
  const first = +figure.dataset.first, last = +figure.dataset.last;
  const toStep = (x) => Math.round(first + x * (last - first));
  const nearest = (places, x) => places.reduce((best, place, i) => Math.abs(place - x) < Math.abs(places[best] - x) ? i : best, 0);
  const lines = () => [...figure.querySelectorAll("polyline:not(.smooth)")].map((line) => {
    const points = line.getAttribute("points").split(" ").map((pair) => pair.split(",").map((n) => n / 10000));
    const low = +figure.dataset.low, high = +figure.dataset.high;
    return { x: points.map((p) => p[0]), told: points.map((p) => number(high - p[1] * (high - low))) };
  });
  const bands = () => {
    const x = figure.dataset.steps.split(",").map((step) => (step - first) / Math.max(last - first, 1));
    return [...figure.querySelectorAll("polygon")].map((band) => ({ x, told: band.dataset.shares.split(",").map((n) => `${Math.round(n / 10)} %`) }));
  };
  let series = null;
  plot.addEventListener("pointermove", (event) => {
    series ??= figure.classList.contains("timeline") ? bands() : lines();
    const box = plot.getBoundingClientRect(), x = (event.clientX - box.left) / box.width;
    const places = series.map((each) => nearest(each.x, x));
    const here = series[0].x[places[0]];
    cursor.hidden = false;
    cursor.style.left = `${here * 100}%`;
    at.textContent = `step ${toStep(here)}`;
    values.forEach((value, i) => { value.textContent = series[i].told[places[i]]; });
  });
  plot.addEventListener("pointerleave", () => {
    cursor.hidden = true;
    at.textContent = "training step";
    values.forEach((value) => { value.textContent = value.dataset.last; });
  });
}

function number(value) {
  return value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6) ? String(+value.toPrecision(3)) : value.toExponential(2);
}

// The viewer of tokens. Everything that episodes hold enters the page as text, by textContent.
if (document.getElementById("data")) viewer(JSON.parse(document.getElementById("data").textContent));

function viewer(data) {
  const at = (id) => document.getElementById(id);
  const make = (name, text, kind) => Object.assign(document.createElement(name), { textContent: text ?? "", className: kind ?? "" });
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
}
