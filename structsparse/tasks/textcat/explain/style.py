"""The style of the HTML page that explains a text classifier: CSS style sheet, colour shades and script."""

from __future__ import annotations

LEVELS = 4  # number of colour shades for weights of one sign


def shade(weight: float, scale: float) -> str:
    """The style (CSS class) that colours a weight; `scale` is the absolute weight that is shown in full colour."""
    level = min(LEVELS, 1 + int(LEVELS * abs(weight) / scale))
    return f"{'p' if weight > 0 else 'n'}{level}"


STYLE = """
:root {
  --paper: #fdfcf9; --ink: #23221f; --soft: #65625b; --line: #e4e0d7; --wash: #f5f2ea;
  --p: 31 111 158; --n: 196 98 22; --accent: #2f6b52; --full: .42;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #181715; --ink: #e9e5dc; --soft: #a19c91; --line: #35322d; --wash: #211f1c;
    --p: 92 168 214; --n: 230 143 72; --accent: #7fbf9f; --full: .5;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 1rem; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 1.0625rem/1.62 Charter, "Bitstream Charter", "Sitka Text", Cambria, "Noto Serif", Georgia, serif;
  font-variant-numeric: oldstyle-nums; overflow-wrap: break-word;
}
.top, main { max-width: 54rem; margin: 0 auto; padding: 0 1.25rem; }
.top { padding-top: 3.5rem; }
h1 { font-size: 2.1rem; line-height: 1.2; font-weight: 500; letter-spacing: -.01em; margin: 0 0 .6rem; }
h2 {
  font-size: 1.4rem; font-weight: 500; margin: 4rem 0 .5rem; padding-top: .9rem;
  border-top: 1px solid var(--line);
}
h3 { font-size: 1.0625rem; font-weight: 600; margin: 0; }
.eyebrow { color: var(--soft); margin: 0 0 .3rem; font-style: italic; }
.lead { font-size: 1.15rem; margin: 0 0 1rem; max-width: 40rem; }
.note, .count, thead, nav, .legend, .document header p, .number, .search {
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; font-size: .8125rem;
}
.note, .count, .document header p { color: var(--soft); }
.note { line-height: 1.5; max-width: 44rem; }
nav a {
  color: var(--ink); text-decoration-color: var(--line); text-underline-offset: .3em; margin-right: 1.5rem;
}
nav a:hover { text-decoration-color: currentColor; }
.legend { display: flex; flex-wrap: wrap; gap: .4rem 2rem; color: var(--soft); margin: 0 0 1.25rem; }
.legend i { padding: .1rem 0; margin-right: 2px; font-style: normal; }
.pair { white-space: nowrap; }

.w { border-radius: 2px; padding: .06em .12em; margin: 0 -.06em; }
.p1 { --c: rgb(var(--p) / calc(var(--full) * .22)); } .p2 { --c: rgb(var(--p) / calc(var(--full) * .45)); }
.p3 { --c: rgb(var(--p) / calc(var(--full) * .72)); } .p4 { --c: rgb(var(--p) / var(--full)); }
.n1 { --c: rgb(var(--n) / calc(var(--full) * .22)); } .n2 { --c: rgb(var(--n) / calc(var(--full) * .45)); }
.n3 { --c: rgb(var(--n) / calc(var(--full) * .72)); } .n4 { --c: rgb(var(--n) / var(--full)); }
.w { background: var(--c); color: var(--ink); box-shadow: inset 0 -1.5px rgb(var(--p) / .4); }
.w[class*=" n"] { box-shadow: none; border-bottom: 1.5px dotted rgb(var(--n) / .6); }
.legend .w { box-shadow: none; border: 0; }

.document { margin: 2.25rem 0 3.25rem; }
.document h3 { font-weight: 500; font-style: italic; }
.document header p { margin: .1rem 0 .9rem; }
.document header b { font-weight: 400; margin: 0 .25em; }
.wrong { font-style: normal; color: rgb(var(--n)); font-weight: 600; }
table { border-collapse: collapse; width: 100%; }
thead th { text-align: left; font-weight: 400; color: var(--soft); padding: 0 0 .3rem 1rem; }
thead th.number, td.number { text-align: right; }
.sentences td { vertical-align: top; padding: .34rem 0 .34rem 1rem; }
.sentences tr.lives td:first-child { border-left: 3px solid var(--accent); }
.sentences tr.dead td:first-child { border-left: 3px solid transparent; }
.sentences tr + tr td { border-top: 1px solid var(--line); }
mark.selected { background: none; color: var(--ink); }
p mark.selected { border-left: 3px solid var(--accent); padding-left: .35em; }
.unselected { color: var(--soft); }
td.number { width: 7.25rem; white-space: nowrap; padding-top: .55rem; }
.number { font-variant-numeric: tabular-nums lining-nums; color: var(--soft); }
tr.lives td.number { color: var(--ink); }
.track {
  display: block; position: relative; height: 3px; margin: .3rem 0 0; background: var(--line);
  border-radius: 2px;
}
.bar { position: absolute; top: 0; bottom: 0; left: 0; border-radius: 2px; background: var(--soft); }
.sentences .track::after {
  content: ""; position: absolute; left: 50%; top: -2px; bottom: -2px; width: 1px; background: var(--soft);
}
.bar.for { left: 50%; background: var(--accent); }
.bar.against { left: auto; right: 50%; background: var(--soft); }
.bar.p {
  background: rgb(var(--p)); } .bar.n { background: rgb(var(--n));
  } .bar.plain { background: var(--accent);
}
.hidden {
  position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
  white-space: nowrap;
}

.tree { margin: 1.25rem 0 .25rem; overflow-x: auto; padding: .25rem 0; width: max-content; max-width: 100%; }
@media (min-width: 62rem) { .tree { max-width: calc(50vw + 25rem); } }
.tree svg { display: block; overflow: visible; }
.tree path { fill: none; stroke: var(--ink); stroke-width: 1.15; opacity: .75; }
.tree path.dead { stroke: var(--soft); stroke-dasharray: 2 3; opacity: .6; }
.tree circle { fill: var(--accent); }
.tree circle.dead { fill: var(--paper); stroke: var(--soft); stroke-dasharray: 2 2; }
.tree text {
  font: 15px Charter, "Bitstream Charter", "Sitka Text", Cambria, "Noto Serif", Georgia, serif;
  text-anchor: middle; fill: var(--ink);
}
.tree text.dead { fill: var(--soft); }
.tree text.label {
  font: 600 11px system-ui, sans-serif; text-anchor: start;
  stroke: var(--paper); stroke-width: 3px; paint-order: stroke;
}
.tree rect { fill: var(--c); }

.columns {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 2rem 3.5rem;
  margin-top: 1.25rem;
}
.tops { list-style: none; margin: .6rem 0 0; padding: 0; }
.tops li {
  display: grid; grid-template-columns: 8.5rem 1fr 3.25rem; align-items: center; gap: .75rem;
  line-height: 1.75;
}
.tops .track { margin: 0; } .tops .number { text-align: right; }
.kind { margin: 2rem 0 .5rem; text-transform: capitalize; }
details.groups { margin: .5rem 0 1.5rem; }
summary { cursor: pointer; padding: .3rem 0; }
summary .note { display: inline; }
.groups td, .groups tbody th {
  vertical-align: top; padding: .45rem 0 .45rem 1.25rem; border-top: 1px solid var(--line);
}
.groups tbody th { text-align: left; font-weight: 400; padding-left: 0; width: 13rem; }
.groups td.number { width: 5.75rem; padding-top: .62rem; }
details.dead td, details.dead tbody th { color: var(--soft); }
.search {
  border: 1px solid var(--line); border-radius: 4px; background: var(--wash); color: var(--ink);
  padding: .35rem .7rem; width: 16rem; max-width: 100%; margin-top: .5rem;
}
:focus-visible { outline: 2px solid var(--accent); outline-offset: 3px; }
@media (max-width: 38rem) {
  body { font-size: 1rem; } .top { padding-top: 1.75rem; } h1 { font-size: 1.6rem; }
  .groups tbody th { width: auto; } td.number { width: 5rem; }
  .groups tr { display: grid; grid-template-columns: 1fr 5rem; }
  .groups td:last-child { grid-column: 1 / -1; border: 0; padding: 0 0 .6rem; }
}
@media print {
  details.groups > summary { list-style: none; } .search { display: none;
  } .document { break-inside: avoid; };
}
"""

# The script adds a search field for word groups. Without scripts, the page has no search field.
SCRIPT = """
"use strict";
const groups = document.querySelector("#groups h2");
if (groups) {
  const field = Object.assign(document.createElement("input"), {type: "search", className: "search",
    placeholder: "groups with a word or name"});
  field.setAttribute("aria-label", "Show only groups with this word or name");
  field.addEventListener("input", () => {
    const query = field.value.trim().toLowerCase();
    for (const row of document.querySelectorAll("table.groups tbody tr"))
      row.hidden = !row.textContent.toLowerCase().includes(query);
  });
  groups.after(field);
}
"""
