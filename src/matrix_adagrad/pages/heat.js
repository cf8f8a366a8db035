// Side by side on a wide screen, one under the other on a phone: the part of the drawing that each grid has, with room for
// titles and axes between them.
function domainsOf(chart, count, margin) {
  const stacked = phone.matches && !printing;
  const { width, height } = printing ? PAPER : { width: chart.plot.clientWidth, height: chart.plot.clientHeight };
  const room = stacked ? 104 / (height - margin.t - margin.b) : 76 / (width - margin.l - margin.r);
  const size = (1 - room * (count - 1)) / count;
  return Array.from({ length: count }, (_, i) => {
    const from = i * (size + room);
    return stacked ? { x: [0, 1], y: [1 - from - size, 1 - from] } : { x: [from, from + size], y: [0, 1] };
  });
}

// What has no room ends in dots: a letter is about seven pixels wide.
function cut(text, pixels) {
  const most = Math.max(4, Math.floor(pixels / 7));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

// The name of a row or column, or its number.
function placeName(axis, i) {
  return axis.names.length ? axis.names[i] : short(axis.places[i]);
}

// Few rows or columns are all named. Names of columns break at spaces.
function gridAxis(axis, range, title, isAcross) {
  const ticktext = axis.places.map((_, i) => plain(placeName(axis, i))).map((name) => (isAcross ? name.replaceAll(" ", "<br>") : name));
  const all = axis.names.length || (axis.places.length <= 8 && !axis.log);
  const at = all ? { tickmode: "array", tickvals: axis.places, ticktext } : {};
  return { ...axisLayout(axis.log, axis.log ? range.map(Math.log10) : range, title, false), showgrid: false, showline: false, ...at };
}

// The colours of a logarithmic scale are those of the exponents.
function colourTicks([low, high], log) {
  if (!log) return { nticks: 6, exponentformat: "power" };
  const { tickvals, dtick } = logTicks([low, high], false);
  // The bar is short: 0.000002 would run into its neighbour.
  const brief = (value) => {
    const power = Number(short(value)).toExponential();
    return power.length < short(value).length ? power : short(value);
  };
  if (tickvals) return { tickmode: "array", tickvals: tickvals.map(Math.log10), ticktext: tickvals.map(brief) };
  const step = dtick ?? (high - low) / 3;
  const exponents = [];
  for (let at = dtick ? Math.ceil(low) : low; at <= high + 1e-9; at += step) exponents.push(at);
  const ticktext = exponents.map((at) => (dtick ? `10<sup>${at}</sup>` : brief(10 ** at)));
  return { tickmode: "array", tickvals: exponents, ticktext };
}

function gridTrace(figure, grid, log, i) {
  const number = i ? i + 1 : "";
  const note = (value, row, column) => [
    `${grid.x.label} ${placeName(grid.x, column)}`, `${grid.y.label} ${placeName(grid.y, row)}`,
    value === null ? "no value" : `${figure.scale} ${short(value)}`,
  ].map(plain).join("<br>");
  const colour = (value) => (log ? (value > 0 ? Math.log10(value) : null) : value);
  const notes = grid.values.map((row, r) => row.map((value, c) => note(value, r, c)));
  return {
    type: "heatmap", x: grid.x.edges, y: grid.y.edges, xaxis: `x${number}`, yaxis: `y${number}`, coloraxis: "coloraxis",
    z: grid.values.map((row) => row.map(colour)),
    ...(grid.labels.length ? {
      text: grid.labels.map((row) => row.map((word) => plain(word).replaceAll("\n", "<br>"))), texttemplate: "%{text}",
      textfont: { size: phone.matches && !printing ? 8 : 11 }, customdata: notes, hovertemplate: "%{customdata}<extra></extra>",
    } : { text: notes, hovertemplate: "%{text}<extra></extra>" }),
  };
}

function heatDrawing(chart) {
  const { figure, logs } = chart;
  const { grids, limits } = figure.panels[chart.panel];
  const { ink, muted, gap } = theme();
  const range = logs.z ? limits.log.map(Math.log10) : limits.linear;
  const longest = Math.max(0, ...grids.flatMap((grid) => grid.y.names).map((name) => name.length));
  const named = grids.some((grid) => grid.x.names.length) ? 28 : 0;
  const margin = { l: Math.max(44, 12 + 7 * longest), r: 12, t: grids.some((grid) => grid.title) ? 44 : 24, b: 104 + named };
  const domains = domainsOf(chart, grids.length, margin);
  const layout = {
    ...baseLayout(false), margin, plot_bgcolor: gap, hovermode: "closest", annotations: [],
    coloraxis: { colorscale: "Viridis", cmin: range[0], cmax: range[1], colorbar: {
      orientation: "h", thickness: 12, len: phone.matches && !printing ? 1 : 0.5, outlinewidth: 0, x: 0, xanchor: "left", xpad: 0,
      y: 0, yref: "container", yanchor: "bottom", ypad: 0, ticks: "outside", ticklen: 4, tickcolor: muted,
      ...colourTicks(range, logs.z),
    } },
    // Another plate is another matrix: no zoom outlives it.
    uirevision: `${chart.panel}`,
  };
  const width = (printing ? PAPER.width : chart.plot.clientWidth) - margin.l - margin.r;
  const line = (text, x, y, yshift, color, room) => ({
    text: plain(cut(text, room)), x, y, yshift, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom",
    showarrow: false, align: "left", borderpad: 0, font: { size: 12.5, color },
  });
  // Plotly would set the title of this bar into its colours.
  layout.annotations.push(line(figure.scale, 0, 0, 36 - margin.b, ink, width));
  grids.forEach((grid, i) => {
    const { x, y } = domains[i];
    const number = i ? i + 1 : "";
    const across = [grid.x.edges[0], grid.x.edges.at(-1)], down = [grid.y.edges.at(-1), grid.y.edges[0]];
    layout[`xaxis${number}`] = { ...gridAxis(grid.x, across, grid.x.label, true), domain: x, anchor: `y${number}` };
    layout[`yaxis${number}`] = { ...gridAxis(grid.y, down, "", false), domain: y, anchor: `x${number}` };
    const room = (x[1] - x[0]) * width;
    // The name of the vertical axis stands above it, as those of curves do.
    layout.annotations.push(line(grid.title, x[0], y[1], 19, ink, room), line(grid.y.label, x[0], y[1], 1, muted, room));
  });
  return [grids.map((grid, i) => gridTrace(figure, grid, logs.z, i)), layout];
}

// A matrix reads best as one.
function heatNumbers(panel) {
  return panel.grids.map((grid) => ({
    title: grid.title, head: [`${grid.y.label} ↓  ${grid.x.label} →`, ...grid.x.places.map((_, c) => placeName(grid.x, c))],
    rows: grid.values.map((row, r) => [placeName(grid.y, r), ...row.map(short)]),
  }));
}
