// A dollar sign is one, not the start of a formula.
const config = { displaylogo: false, responsive: true, typesetMath: false, modeBarButtons: [["resetScale2d"]], doubleClick: "reset", displayModeBar: coarse.matches ? false : "hover" };

const KINDS = {
  curves: { drawing: curvesDrawing, numbers: curvesNumbers },
  heat: { drawing: heatDrawing, numbers: heatNumbers },
};

function draw(chart) {
  chart.drawn = true;
  const [traces, layout] = KINDS[chart.figure.kind].drawing(chart);
  chart.root.querySelector(".gaps")?.toggleAttribute("hidden", !traces.some((trace) => trace.z.flat().includes(null)));
  if (printing) Object.assign(layout, chart.small ? { width: 205, height: 190 } : PAPER);
  return Plotly.react(chart.plot, traces, layout, chart.small ? { ...config, staticPlot: true } : config);
}

function redraw() {
  for (const chart of charts) if (chart.drawn) draw(chart);
}

function makeChart(root, name, small) {
  const figure = report.figures[name];
  const chart = { root, figure, small, logs: { ...figure.logs }, plot: root.querySelector(".plot"), panel: figure.start, hidden: new Set(), drawn: false };
  charts.push(chart);
  return chart;
}

// Text goes in as text: nothing that a name contains is read as HTML.
function row(kind, fields) {
  const element = document.createElement("tr");
  fields.forEach((text, i) => {
    const cell = element.appendChild(document.createElement(kind));
    cell.textContent = text;
    if (i) cell.className = "number";
  });
  return element;
}

function fillNumbers(chart) {
  const details = chart.root.querySelector(".numbers");
  if (!details.open) return;
  const made = KINDS[chart.figure.kind].numbers(chart.figure.panels[chart.panel]).map(({ title, head, rows }) => {
    const table = document.createElement("table");
    if (title) table.createCaption().textContent = title;
    table.createTHead().append(row("th", head));
    table.createTBody().append(...rows.map((fields) => row("td", fields)));
    return table;
  });
  details.querySelector(".scroll").replaceChildren(...made);
}

function showPanel(chart) {
  const { root, figure } = chart;
  const panel = figure.panels[chart.panel];
  const present = new Set(panel.lines?.map((line) => line.name));
  for (const button of root.querySelectorAll("[data-line]")) button.disabled = !present.has(button.dataset.line);
  chart.plot.setAttribute("aria-label", figure.panels.length > 1 ? `${figure.text} Shown: ${panel.title}.` : figure.text);
  fillNumbers(chart);
}

function connect(chart) {
  const { root, hidden, logs } = chart;
  root.querySelector(".panels")?.addEventListener("change", (event) => {
    chart.panel = Number(event.target.value);
    showPanel(chart);
    draw(chart);
  });
  const toggle = (button, change) => button.addEventListener("click", () => {
    const pressed = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(pressed));
    change(pressed);
    draw(chart);
  });
  for (const button of root.querySelectorAll("[data-line]")) {
    toggle(button, (pressed) => (pressed ? hidden.delete(button.dataset.line) : hidden.add(button.dataset.line)));
  }
  for (const button of root.querySelectorAll("[data-scale]")) toggle(button, (pressed) => (logs[button.dataset.scale] = pressed));
  root.querySelector(".numbers").addEventListener("toggle", () => fillNumbers(chart));
  showPanel(chart);
}

for (const root of document.querySelectorAll("[data-leading]")) makeChart(root, root.dataset.leading, true);
for (const root of document.querySelectorAll("[data-figure]")) connect(makeChart(root, root.dataset.figure, false));

const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) {
    watch.unobserve(entry.target);
    draw(charts.find((chart) => chart.root === entry.target));
  }
}, { rootMargin: "400px" });
for (const chart of charts) watch.observe(chart.root);

let unfolded = [];
addEventListener("beforeprint", () => {
  printing = true;
  unfolded = [...document.querySelectorAll(".unfold:not([open]), .words:not([open])")];
  for (const details of unfolded) details.open = true;
  for (const chart of charts) draw(chart);
});
addEventListener("afterprint", () => {
  printing = false;
  for (const details of unfolded) details.open = false;
  redraw();
});
dark.addEventListener("change", redraw);
phone.addEventListener("change", redraw);
