"""The script of a run's page: the values of a chart under the pointer, or under the arrow keys."""

SCRIPT = """
for (const figure of document.querySelectorAll("figure.chart")) {
  const drawing = figure.querySelector("svg");
  const cursor = drawing.querySelector(".cursor");
  const said = figure.querySelector("output");
  const values = JSON.parse(figure.dataset.values);
  let shown = values.x.length - 1;

  function say(index) {
    said.textContent = values.said[index].join("  ·  ");
  }
  function show(index) {
    shown = Math.max(0, Math.min(values.x.length - 1, index));
    const x = values.x[shown];
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.classList.add("on");
    say(shown);
  }
  function hide() {
    cursor.classList.remove("on");
    say(values.x.length - 1);
  }
  function nearest(event) {
    const box = drawing.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * drawing.viewBox.baseVal.width;
    let best = 0;
    values.x.forEach((each, index) => { if (Math.abs(each - x) < Math.abs(values.x[best] - x)) best = index; });
    return best;
  }
  drawing.addEventListener("pointermove", (event) => show(nearest(event)));
  drawing.addEventListener("pointerdown", (event) => show(nearest(event)));
  drawing.addEventListener("pointerleave", hide);
  drawing.addEventListener("focus", () => show(shown));
  drawing.addEventListener("blur", hide);
  drawing.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) { show(shown + step); event.preventDefault(); }
  });
  hide();
}
"""
