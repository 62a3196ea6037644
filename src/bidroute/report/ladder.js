"use strict";
const LADDER = JSON.parse(document.getElementById("report-data").textContent);
const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };

function showMeasure(measure) {
  const figure = LADDER.climbs[measure];
  Plotly.react("climb", figure.data, figure.layout, CONFIG);
  for (const chip of document.querySelectorAll(".chip")) {
    chip.setAttribute("aria-pressed", String(chip.dataset.measure === measure));
  }
  for (const table of document.querySelectorAll(".worth")) {
    table.classList.toggle("chosen", table.dataset.measure === measure);
  }
}

for (const chip of document.querySelectorAll(".chip")) {
  chip.addEventListener("click", () => showMeasure(chip.dataset.measure));
}

const choice = document.getElementById("path-trace");
function showPath() {
  const figure = LADDER.paths[choice.value];
  Plotly.react("path", figure.data, figure.layout, CONFIG);
}
choice.addEventListener("change", showPath);
showMeasure("e2e_s.mean");
showPath();
