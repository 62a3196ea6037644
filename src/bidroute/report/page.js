"use strict";
const REPORT = JSON.parse(document.getElementById("report-data").textContent);
const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };
const shown = new Set(REPORT.shown);

for (const [id, figure] of Object.entries(REPORT.figures)) {
  Plotly.newPlot(id, figure.data, figure.layout, CONFIG);
}

function showPolicies() {
  for (const id of Object.keys(REPORT.figures)) {
    const visible = REPORT.figures[id].data.map((line) => shown.has(line.meta));
    Plotly.restyle(id, { visible });
  }
  for (const chip of document.querySelectorAll(".chip")) {
    chip.setAttribute("aria-pressed", String(shown.has(chip.dataset.policy)));
  }
}

for (const chip of document.querySelectorAll(".chip")) {
  chip.addEventListener("click", () => {
    const policy = chip.dataset.policy;
    if (!shown.delete(policy)) shown.add(policy);
    showPolicies();
  });
}

const choice = document.getElementById("inside-policy");
function showInside() {
  const figure = REPORT.inside[choice.value];
  Plotly.react("inside", figure.data, figure.layout, CONFIG);
}
if (choice) {
  choice.addEventListener("change", showInside);
  showInside();
}
showPolicies();
