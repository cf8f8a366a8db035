function faint(colour, alpha) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  return `rgba(${r},${g},${b},${alpha})`;
}

// Lowest and highest value of an axis over all panels, so that a change of panel leaves the axes in place.
function extent(figure, hidden, key, log) {
  const keys = key === "x" ? ["x"] : ["y", "low", "high"];
  let low = Infinity, high = -Infinity;
  for (const panel of figure.panels) for (const line of panel.lines) {
    if (hidden.has(line.name)) continue;
    for (const k of keys) for (const value of line[k]) {
      if (value === null || (log && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : [log ? 0.1 : 0, 1];
}

function range(figure, hidden, key, log) {
  const axis = figure[key];
  const on = (value) => (log ? Math.log10(value) : value);
  let [low, high] = extent(figure, hidden, key, log).map(on);
  const room = (high - low || Math.abs(high) || 1) * (key === "x" ? 0.02 : 0.05);
  low -= room;
  high += room;
  if (axis.floor !== null && (!log || axis.floor > 0)) low = on(axis.floor);
  if (axis.ceiling !== null && (!log || axis.ceiling > 0)) high = on(axis.ceiling);
  return low < high ? [low, high] : [high, low];
}

// A closed shape for each stretch of the band without a gap. On a log axis what is not positive goes to the edge.
function bandShape(line, edge) {
  const x = [], y = [];
  let run = [];
  const close = () => {
    if (run.length > 1) {
      x.push(...run.map((p) => p[0]), ...run.map((p) => p[0]).reverse(), null);
      y.push(...run.map((p) => p[1]), ...run.map((p) => p[2]).reverse(), null);
    }
    run = [];
  };
  line.low.forEach((low, i) => {
    const high = line.high[i];
    if (low === null || high === null || high === undefined || (edge !== null && high <= 0)) close();
    else run.push([line.x[i], edge !== null ? Math.max(low, edge) : low, high]);
  });
  close();
  return { x: x.slice(0, -1), y: y.slice(0, -1) };
}

function bandTrace(line, edge) {
  const style = report.styles[line.name];
  const colour = isDark() ? style.dark : style.light;
  return {
    ...bandShape(line, edge), type: "scatter", mode: "lines", fill: "toself", hoverinfo: "skip", showlegend: false,
    fillcolor: faint(colour, isDark() ? 0.2 : 0.15), line: { width: 0, color: colour },
  };
}

function curveTrace(line, small) {
  const style = report.styles[line.name];
  const colour = isDark() ? style.dark : style.light;
  const notes = line.y.map((y, i) =>
    line.low.length && line.low[i] !== null && line.high[i] !== null
      ? `${short(y)}  (${short(line.low[i])} to ${short(line.high[i])})` : short(y));
  return {
    x: line.x, y: line.y, customdata: notes, name: plain(line.name), type: "scatter", mode: "lines+markers",
    hovertemplate: "%{customdata}", connectgaps: false,
    line: { color: colour, width: small ? 1.6 : 2, dash: style.dash.length ? style.dash.map((d) => `${d}px`).join(",") : "solid" },
    marker: { color: colour, symbol: style.marker, size: small ? 5 : 7, maxdisplayed: line.x.length > 12 ? 8 : 0 },
  };
}

// References carry their names at their first or last point in sight, whichever is farther from the curves: the topmost
// of several above its line, the others below theirs.
function referenceTraces(lines, curves, xs, ys, logs, small) {
  const inside = (value, [low, high], log) => {
    const at = log ? Math.log10(value) : value;
    return value !== null && at >= low && at <= high;
  };
  // How far the nearest curve is above a level, at the first or the last point.
  const nearest = (level, at) => curves.map((curve) => (curve.y.at(at) ?? Infinity) - level)
    .reduce((best, gap) => (Math.abs(gap) < Math.abs(best) ? gap : best), Infinity);
  const distance = (level, at) => Math.abs(nearest(level, at));
  const ends = lines.map((line) => {
    const seen = line.x.flatMap((x, i) => inside(x, xs, logs.x) && inside(line.y[i], ys, logs.y) ? [i] : []);
    if (!seen.length) return -1;
    const first = seen[0], last = seen.at(-1);
    return distance(line.y[first], 0) > distance(line.y[last], -1) ? first : last;
  });
  const top = lines.reduce((best, line, k) =>
    ends[k] >= 0 && (best < 0 || line.y[ends[k]] > lines[best].y[ends[best]]) ? k : best, -1);
  // One name alone goes to the side where the nearest curve is not.
  const isAbove = (line, k) => {
    const gap = nearest(line.y[ends[k]], ends[k] > 0 ? -1 : 0);
    return lines.length > 1 || Math.abs(gap) === Infinity ? k === top : gap < 0;
  };
  return lines.map((line, k) => ({
    x: line.x, y: line.y, customdata: line.y.map(short), name: plain(line.name), type: "scatter", mode: "lines+text", cliponaxis: false,
    hovertemplate: "%{customdata}", line: { color: theme().muted, width: 1.1, dash: "4px,3px" },
    text: line.x.map((_, i) => (i === ends[k] ? plain(line.name) : "")),
    textposition: `${isAbove(line, k) ? "top" : "bottom"} ${ends[k] > 0 ? "left" : "right"}`,
    textfont: { color: theme().muted, size: small ? 10 : 11.5 },
  }));
}

function curvesDrawing(chart) {
  const { figure, hidden, logs, small } = chart;
  const shown = figure.panels[chart.panel].lines.filter((line) => !hidden.has(line.name));
  const xs = range(figure, hidden, "x", logs.x), ys = range(figure, hidden, "y", logs.y);
  const edge = logs.y ? 10 ** ys[0] : null;
  const curves = shown.filter((line) => !line.reference), references = shown.filter((line) => line.reference);
  const layout = {
    ...baseLayout(small),
    xaxis: { ...axisLayout(logs.x, xs, figure.x.label, small), unifiedhovertitle: { text: `${plain(figure.x.label)} %{x}` } },
    yaxis: axisLayout(logs.y, ys, "", small),
    // The name of the vertical axis stands above it, where it reads without turning one's head.
    title: { text: plain(figure.y.label), x: 0, xref: "container", xanchor: "left", y: 1, yref: "container", yanchor: "top",
      pad: { t: 2 }, font: { size: small ? 11.5 : 12.5, color: theme().ink } },
    margin: { l: 36, r: 12, t: 28, b: 40 }, hovermode: phone.matches || curves.length > 12 ? "closest" : "x unified",
    // A zoom outlives a change of panel or curves, not that of a scale.
    uirevision: `${logs.x} ${logs.y}`,
  };
  const traces = [
    ...curves.filter((line) => line.low.length).map((line) => bandTrace(line, edge)),
    ...referenceTraces(references, curves, xs, ys, logs, small), ...curves.map((line) => curveTrace(line, small)),
  ];
  return [traces, layout];
}

function curvesNumbers(panel) {
  const fields = (line, i) => [line.name, ...[line.x, line.y, line.low, line.high].map((values) => short(values[i]))];
  const rows = panel.lines.flatMap((line) => line.x.map((_, i) => fields(line, i)));
  return [{ title: "", head: ["line", "x", "y", "low", "high"], rows }];
}
