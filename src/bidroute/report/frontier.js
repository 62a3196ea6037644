"use strict";
const REPORT = JSON.parse(document.getElementById("report-data").textContent);
const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };
const BEST = new Map(REPORT.measures.map((measure) => [measure.path, measure.higher ? -1 : 1]));
const choices = { x: document.getElementById("x-measure"), y: document.getElementById("y-measure") };
const detail = document.getElementById("point-detail");

function measureOf(path) {
  return REPORT.measures.find((measure) => measure.path === path);
}

// Points that no other beats on both measures, from left to right.
function frontOf(points, x, y) {
  const better = (path, a, b) => BEST.get(path) * (a.figures[path] - b.figures[path]);
  const ordered = [...points].sort((a, b) => better(x, a, b) || better(y, a, b));
  const front = [];
  for (const point of ordered) {
    if (!front.length || better(y, point, front[front.length - 1]) < 0) front.push(point);
  }
  return front.sort((a, b) => a.figures[x] - b.figures[x]);
}

function hover(point) {
  const lines = REPORT.measures.map((m) => `${m.label} ${point.shown[m.path]}`);
  return `<b>${point.html}</b><br>${lines.join("<br>")}`;
}

function trace(points, x, y, style) {
  return {
    type: "scatter",
    mode: style.text ? "markers+text" : "markers",
    name: style.name,
    x: points.map((p) => p.figures[x]),
    y: points.map((p) => p.figures[y]),
    text: style.text ? points.map((p) => p.short) : undefined,
    textposition: style.text ? labelPlaces(points, x, y) : undefined,
    textfont: { size: 11, color: style.colour },
    cliponaxis: false,
    customdata: points.map((p) => p.index),
    hovertext: points.map(hover),
    hovertemplate: "%{hovertext}<extra></extra>",
    marker: { color: style.colour, size: style.size, symbol: style.symbol, opacity: style.opacity, line: { width: 1, color: "white" } },
  };
}

// Labels of points that lie close together go to different sides.
function labelPlaces(points, x, y) {
  const sides = ["top center", "bottom center", "middle right", "middle left"];
  const spread = (path) => {
    const values = REPORT.points.map((p) => p.figures[path]).filter((v) => v !== null);
    return Math.max(...values) - Math.min(...values) || 1;
  };
  const [width, height] = [spread(x), spread(y)];
  const near = (a, b) =>
    Math.abs(a.figures[x] - b.figures[x]) / width < 0.08 && Math.abs(a.figures[y] - b.figures[y]) / height < 0.08;
  return points.map((point, place) => {
    const close = points.slice(0, place).filter((other) => near(point, other)).length;
    return sides[close % sides.length];
  });
}

function draw() {
  const x = choices.x.value;
  const y = choices.y.value;
  const points = REPORT.points.filter((p) => p.figures[x] !== null && p.figures[y] !== null);
  const front = frontOf(points, x, y);
  const of = (kind, onFront) => points.filter((p) => p.kind === kind && (onFront === undefined || p.onFront === onFront));
  const colour = REPORT.colours;
  const line = {
    type: "scatter",
    mode: "lines",
    name: "front of these two",
    x: front.map((p) => p.figures[x]),
    y: front.map((p) => p.figures[y]),
    line: { color: colour.front, width: 2, shape: "linear", dash: "dot" },
    hoverinfo: "skip",
  };
  const data = [
    line,
    trace(of("found", false), x, y, { name: "found, beaten on all five", colour: colour.beaten, size: 8, symbol: "circle", opacity: 0.65 }),
    trace(of("found", true), x, y, { name: "found, on the front of all five", colour: colour.found, size: 10, symbol: "circle", opacity: 0.9 }),
    trace(of("baseline"), x, y, { name: "other policies", colour: colour.baseline, size: 11, symbol: "x", opacity: 1, text: true }),
    trace(of("preset"), x, y, { name: "presets", colour: colour.preset, size: 13, symbol: "diamond", opacity: 1, text: true }),
  ];
  const layout = structuredClone(REPORT.layout);
  layout.xaxis.title = { text: measureOf(x).axis };
  layout.yaxis.title = { text: measureOf(y).axis };
  layout.xaxis.type = document.getElementById("log").checked ? "log" : "linear";
  layout.yaxis.type = layout.xaxis.type;
  Plotly.react("front", data, layout, CONFIG);
}

function show(point) {
  detail.textContent = point.command;
  for (const row of document.querySelectorAll("tr[data-point]")) {
    row.classList.toggle("picked", Number(row.dataset.point) === point.index);
  }
}

draw();
for (const element of [choices.x, choices.y, document.getElementById("log")]) element.addEventListener("change", draw);
document.getElementById("front").on("plotly_click", (event) => {
  const index = event.points[0].customdata;
  if (index !== undefined) show(REPORT.points[index]);
});
for (const row of document.querySelectorAll("tr[data-point]")) {
  row.addEventListener("click", () => show(REPORT.points[Number(row.dataset.point)]));
}
