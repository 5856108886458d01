"use strict";
(function () {
  const root = document.documentElement;
  const theme = document.querySelector("fieldset.theme");
  theme.hidden = false;
  theme.addEventListener("change", (event) => {
    if (event.target.value === "auto") delete root.dataset.theme;
    else root.dataset.theme = event.target.value;
  });

  const found = document.getElementById("walks");
  if (!found) return;
  const walks = JSON.parse(found.textContent);
  const by = (id) => document.getElementById("step-" + id);
  const stepper = document.getElementById("stepper");
  const slider = by("round"), play = by("play");
  const still = window.matchMedia("(prefers-reduced-motion: reduce)");
  let prompt, walk, place, timer = null;

  const choices = (select, names) => select.replaceChildren(...names.map((name, at) => new Option(name, at)));
  const counted = (count, one) => count + " " + one + (count === 1 ? "" : "s");
  const drawn = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  function choosePrompt() {
    const before = walk && walk.method;
    prompt = walks.prompts[by("prompt").value];
    choices(by("method"), prompt.walks.map((each) => walks.methods[each.method].label));
    by("method").value = Math.max(0, prompt.walks.findIndex((each) => each.method === before));
    by("asked").textContent = prompt.asked || "";
    chooseMethod();
  }

  function chooseMethod() {
    walk = prompt.walks[by("method").value];
    const cut = walk.steps.length < walk.rounds ? ", the first " + walk.steps.length + " are here" : "";
    by("said").textContent = walk.said + "; " + counted(walk.rounds, "round") + cut;
    stepper.className = "stepper m" + walks.methods[walk.method].colour;
    slider.max = walk.steps.length - 1;
    go(0);
  }

  function go(to) {
    place = Math.min(Math.max(0, to), walk.steps.length - 1);
    const step = walk.steps[place];
    slider.value = place;
    const focused = document.activeElement;
    by("first").disabled = by("back").disabled = place === 0;
    by("last").disabled = by("on").disabled = place === walk.steps.length - 1;
    if (focused && focused.disabled) stepper.focus(); // a button that is switched off would lose it
    if (by("on").disabled) stop();
    const accepted = step.path.length - 1;
    const own = step.own === null ? "" : " and the target's own token";
    const said = "Round " + (place + 1) + " of " + walk.steps.length + ": " + counted(step.nodes, "node") + " verified, " +
      counted(accepted, "token") + " accepted" + own + ".";
    by("told").textContent = said;
    slider.setAttribute("aria-valuetext", said);
    text(step, accepted);
    tree(step, said);
    cost(step);
    table(step);
  }

  function text(step, accepted) {
    const spans = [];
    walk.steps.forEach((each, at) => {
      if (at > place) return;
      each.pieces.forEach((piece, number) => {
        const span = document.createElement("span");
        span.textContent = piece;
        if (at === place) span.className = "now " + (number < accepted ? "took" : "own");
        spans.push(span);
      });
    });
    by("text").replaceChildren(...spans);
    by("text").scrollTop = by("text").scrollHeight;
  }

  function tree(step, said) {
    const char = 7.3, high = 25, row = 33, gap = 24, pad = 7;
    const nodes = step.above.map((parent, at) => ({ parent, word: walks.words[step.words[at]], share: step.shares[at], at }));
    const path = new Set(step.path);
    if (step.own !== null) nodes.push({ parent: step.path[step.path.length - 1], word: walks.words[step.own], share: null, own: true, at: nodes.length });
    const below = nodes.map(() => []);
    nodes.forEach((node) => { if (node.parent >= 0) below[node.parent].push(node); });
    const rank = (node) => (path.has(node.at) ? -2 : node.own ? -1 : 100 - node.share);
    below.forEach((children) => children.sort((one, other) => rank(one) - rank(other)));
    let rows = 0;
    const layers = [];
    const waiting = [[nodes[0], 0]];
    while (waiting.length) {
      const [node, depth] = waiting.pop();
      node.depth = depth;
      if (node.row === undefined) node.row = rows++;
      node.said = node.at === 0 || node.own ? "" : (node.share < 1 ? "<1" : node.share) + "%";
      node.width = 2 * pad + char * Math.max([...node.word].length, 1) + (node.said ? 5 + 6 * node.said.length : 0);
      layers[depth] = Math.max(layers[depth] || 0, node.width);
      if (below[node.at].length) below[node.at][0].row = node.row;
      [...below[node.at]].reverse().forEach((child) => waiting.push([child, depth + 1]));
    }
    const lefts = [];
    layers.reduce((left, width, depth) => { lefts[depth] = left; return left + width + gap; }, 2);
    const kind = (node) => (node.own ? "own" : node.at === 0 ? "root" : path.has(node.at) ? "accepted" : "rejected");
    const made = [], edges = { rejected: [], own: [], accepted: [] };
    nodes.forEach((node) => {
      const left = lefts[node.depth], top = node.row * row + 2;
      if (node.parent >= 0) {
        const above = nodes[node.parent], from = lefts[above.depth] + above.width, middle = top + high / 2;
        const bend = node.row > above.row ? " H " + (left - gap / 2) + " V " + middle : "";
        edges[kind(node)].push(drawn("path", { class: "edge " + kind(node), d: "M " + from + " " + (above.row * row + 2 + high / 2) + bend + " H " + left }));
      }
      const group = drawn("g", { class: "node " + kind(node) });
      group.append(drawn("title", {}, node.word + (node.said ? ", " + node.said + " after its parent" : "")));
      group.append(drawn("rect", { class: "frame", x: left, y: top, width: node.width, height: high, rx: 4 }));
      group.append(drawn("text", { x: left + pad, y: top + 16 }, node.word));
      if (node.said) {
        group.append(drawn("rect", { class: "bar", x: left + 4, y: top + high - 4.5, width: Math.max(1, (node.width - 8) * node.share / 100), height: 2.5, rx: 1 }));
        group.append(drawn("text", { class: "share", x: left + node.width - pad, y: top + 15.5 }, node.said));
      }
      made.push(group);
    });
    const width = lefts[lefts.length - 1] + layers[layers.length - 1] + 3, height = rows * row;
    const hidden = step.nodes - step.above.length;
    const svg = by("tree");
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    svg.setAttribute("viewBox", "0 0 " + width + " " + height);
    svg.setAttribute("aria-label", "Draft tree. " + said + (hidden > 0 ? " " + counted(hidden, "unlikely node") + " not shown." : ""));
    svg.replaceChildren(...edges.rejected, ...edges.own, ...edges.accepted, ...made);
  }

  function cost(step) {
    const sum = (numbers) => numbers.reduce((all, each) => all + each, 0);
    const all = sum(step.ms), most = Math.max(...walk.steps.map((each) => sum(each.ms)));
    const svg = drawn("svg", { viewBox: "0 0 1000 16", preserveAspectRatio: "none" });
    let at = 0;
    step.ms.forEach((each, part) => {
      const width = most ? (996 * each) / most : 0;
      svg.append(drawn("rect", { class: "part " + walks.parts[part], x: at + 1, y: 1, width: Math.max(0.5, width - 1), height: 14 }));
      at += width;
    });
    by("time").replaceChildren(...(all ? [svg] : []));
    const told = step.ms.map((each, part) => walks.parts[part] + " " + each.toFixed(1)).join(", ");
    const drafts = step.drafts + " draft pass" + (step.drafts === 1 ? "" : "es");
    by("cost").textContent = all ? all.toFixed(1) + " ms (" + told + "), " + drafts : "";
  }

  function table(step) {
    const path = new Set(step.path);
    const rows = step.above.map((parent, at) => {
      const row = document.createElement("tr");
      const cells = [at, walks.words[step.words[at]], parent < 0 ? "-" : parent, at ? (step.shares[at] || "<1") + "%" : "-", path.has(at) ? "yes" : "no"];
      cells.forEach((said, column) => {
        const cell = document.createElement(column ? "td" : "th");
        if (!column) cell.scope = "row";
        cell.textContent = said;
        row.append(cell);
      });
      return row;
    });
    by("table").tBodies[0].replaceChildren(...rows);
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    play.setAttribute("aria-pressed", "false");
    play.textContent = "play";
  }

  play.addEventListener("click", () => {
    if (timer) return stop();
    if (place === walk.steps.length - 1) go(0);
    play.setAttribute("aria-pressed", "true");
    play.textContent = "pause";
    timer = setInterval(() => go(place + 1), still.matches ? 2500 : 1100);
  });
  by("prompt").addEventListener("change", () => { stop(); choosePrompt(); });
  by("method").addEventListener("change", () => { stop(); chooseMethod(); });
  slider.addEventListener("input", () => { stop(); go(Number(slider.value)); });
  const ways = { first: () => 0, back: () => place - 1, on: () => place + 1, last: () => walk.steps.length - 1 };
  Object.entries(ways).forEach(([id, way]) => by(id).addEventListener("click", () => { stop(); go(way()); }));
  const keys = { Home: "first", ArrowLeft: "back", ArrowRight: "on", End: "last" };
  stepper.addEventListener("keydown", (event) => {
    const own = event.target.closest("select, input, summary, .scroll");
    if (own || event.altKey || event.ctrlKey || event.metaKey || !(event.key in keys)) return;
    event.preventDefault();
    stop();
    go(ways[keys[event.key]]());
  });

  stepper.hidden = false;
  choices(by("prompt"), walks.prompts.map((each) => each.title));
  choosePrompt();
})();
