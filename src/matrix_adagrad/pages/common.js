const report = JSON.parse(document.getElementById("report").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const coarse = matchMedia("(pointer: coarse)");
// Two things side by side on a screen stand one under the other here, as the style sheet has it.
const phone = matchMedia("(max-width: 46rem)");
const charts = [];
let printing = false;
const PAPER = { width: 660, height: 300 }; // of a chart in print

const isDark = () => dark.matches && !printing;
const theme = () => (isDark() ? report.themes.dark : report.themes.light);
// Plotly reads a little HTML in its texts; these are plain.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const short = (value) => (value === null || value === undefined ? "" : String(Number(value.toPrecision(4))));

// Powers of ten; over few of them also multiples, written out, as "5" between two powers could be any.
function logTicks([low, high], small) {
  const decades = high - low;
  // Plotly sets powers larger than other numbers.
  const powers = { dtick: Math.ceil(decades / 7), exponentformat: "power", tickfont: { size: small ? 9.5 : 10.5 } };
  if (decades > (small ? 1.2 : 2.2)) return powers;
  if (decades < 0.2) return { nticks: 5, exponentformat: "power" };
  const tickvals = [];
  for (let power = Math.floor(low); power <= high; power++) {
    for (const digit of decades < 0.7 ? [1, 2, 3, 4, 5, 6, 7, 8, 9] : [1, 2, 5]) tickvals.push(Number(`${digit}e${power}`));
  }
  return { tickmode: "array", tickvals, ticktext: tickvals.map(String) };
}

function axisLayout(log, range, title, small) {
  const { ink, muted, grid } = theme();
  return {
    type: log ? "log" : "linear", range, title: { text: plain(title), font: { color: ink, size: 12.5 }, standoff: 8 },
    color: muted, gridcolor: grid, zeroline: false, showline: true, linecolor: muted, ticks: "outside", ticklen: 4,
    tickcolor: muted, automargin: true, hoverformat: ".6~g", ...(log ? logTicks(range, small) : { nticks: 7 }),
  };
}

// What all charts look like, around what they show.
function baseLayout(small) {
  const { ink, paper, muted } = theme();
  return {
    font: { family: getComputedStyle(document.body).fontFamily, size: small ? 11 : 12, color: muted },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, dragmode: coarse.matches ? false : "zoom",
    hoverlabel: { namelength: -1, bgcolor: paper, bordercolor: muted, font: { color: ink, size: 12 } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: muted, activecolor: ink },
  };
}
