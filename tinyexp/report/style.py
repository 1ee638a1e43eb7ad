"""The look of a run's page: light and dark as the reader's system has it, one column on a phone, and plain on paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f6f4; --card: #ffffff; --ink: #14140f; --soft: #55544e; --line: #dddcd6; --grid: #e7e6e1;
  --one: #2a78d6; --two: #d9581f; --three: #12875c; --good: #12734d; --bad: #b3261e; --wait: #8a5a00;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #131311; --card: #1d1d1a; --ink: #f4f3ee; --soft: #b9b8b0; --line: #393833; --grid: #2e2d29;
    --one: #5a9ff0; --two: #f08a55; --three: #3fbf8d; --good: #5fd3a0; --bad: #ff8a80; --wait: #ffc766;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 36px 0 12px; }
h3, figcaption.title { font-size: 0.95rem; font-weight: 600; margin: 0; }
p { margin: 0 0 10px; max-width: 80ch; overflow-wrap: anywhere; }
.soft, figcaption, dt, .note { color: var(--soft); }
.status { display: inline-block; font-weight: 600;
  border: 1.5px solid; border-radius: 999px; padding: 1px 12px; margin: 4px 8px 4px 0; }
.status.finished { color: var(--good); }
.status.stopped { color: var(--bad); }
.status.running { color: var(--wait); }
.tiles { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); margin: 18px 0 0; padding: 0; }
.tiles > div, .card, figure.chart, .sample {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; margin: 0; min-width: 0;
}
.tiles dt { font-size: 0.85rem; }
.tiles dd { margin: 0; font-size: 1.35rem; font-weight: 600; overflow-wrap: anywhere; line-height: 1.25; }
.tiles .note { font-size: 0.8rem; font-weight: 400; display: block; }
.charts { display: grid; gap: 14px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); }
.chart > svg { display: block; width: 100%; height: auto; touch-action: pan-y; }
.chart text { font-size: 11px; fill: var(--soft); }
.chart .grid { stroke: var(--grid); stroke-width: 1; }
.chart .axis { stroke: var(--line); stroke-width: 1; }
.chart .cursor { stroke: var(--soft); stroke-width: 1; visibility: hidden; }
.chart .cursor.on { visibility: visible; }
.chart path { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.c1 { stroke: var(--one); } .c2 { stroke: var(--two); } .c3 { stroke: var(--three); }
circle.c1 { fill: var(--one); } circle.c2 { fill: var(--two); } circle.c3 { fill: var(--three); }
.chart output { display: block; min-height: 2.9em; font-size: 0.8rem; font-variant-numeric: tabular-nums; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 14px; padding: 0; margin: 2px 0 4px; font-size: 0.82rem; }
.legend svg { width: 18px; height: 8px; margin-right: 5px; }
.samples { display: grid; gap: 14px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); }
.sample .pictures { display: grid; grid-template-columns: repeat(3, 1fr); gap: 6px; }
.sample figure { margin: 0; font-size: 0.75rem; }
.sample img { display: block; width: 100%; height: auto; border-radius: 4px; }
.sample h3 { margin-top: 10px; overflow-wrap: anywhere; }
.sample p { margin: 0 0 6px; font-size: 0.82rem; }
.right { color: var(--good); } .wrong { color: var(--bad); }
.answers { display: grid; grid-template-columns: minmax(0, 1fr) 35% 4em; gap: 3px 8px; font-size: 0.82rem;
  align-items: center; margin: 0; }
.answers > * { margin: 0; overflow-wrap: anywhere; }
.answers svg { width: 100%; height: 9px; display: block; }
.answers .bar { fill: var(--one); } .answers .rail { fill: var(--grid); }
.answers dd:nth-child(3n) { text-align: right; font-variant-numeric: tabular-nums; }
.tables {
  display: grid; gap: 0 40px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); align-items: start;
}
.facts { display: grid; gap: 0 40px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); margin: 0; }
.facts div { display: flex; justify-content: space-between; gap: 12px; padding: 4px 0; border-bottom: 1px solid var(--line); }
.facts dd { margin: 0; text-align: right; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: 0 0 14px; }
table { border-collapse: collapse; font-size: 0.88rem; width: 100%; }
caption { text-align: left; font-weight: 600; padding: 0 0 6px; }
th, td { text-align: left; padding: 4px 18px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
th:last-child, td:last-child { padding-right: 0; }
td { max-width: 46ch; overflow-wrap: break-word; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.big { margin: 0 0 14px; min-width: 0; }
.big.wide { grid-column: 1 / -1; order: 1; }
.big img { display: block; max-width: 100%; height: auto; border-radius: 6px; background: #ffffff; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; margin: 0;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: 0.85rem; user-select: all; }
ul.lines { margin: 0 0 10px; padding-left: 1.2em; max-width: 100ch; }
ul.lines li { overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; padding: 4px 0; }
footer { margin-top: 40px; font-size: 0.82rem; color: var(--soft); }
:focus-visible { outline: 2px solid var(--one); outline-offset: 2px; }
@media print {
  :root { color-scheme: light; }
  body { background: #ffffff; font-size: 11px; }
  main { max-width: none; padding: 0; }
  .charts, .samples { grid-template-columns: repeat(3, 1fr); }
  .tiles > div, figure, .sample, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
  .chart output, details:not([open]) { display: none; }
}
"""
