// Brings the page to life.
function setGrouping(by) {
  byId("grouping").value = by;
  group(by);
  scroller.scrollTop = 0;
  redraw();
}
function search() {
  find(byId("find").value);
  byId("found").textContent = !byId("find").value.trim() ? "" : foundList.length ? `${foundList.length.toLocaleString("en")} found` : "none";
  redraw();
}
// What lies below the pointer: an op, or a mark.
function thingAt(x, y) {
  if (x < GUTTER || y < AXIS) return null;
  const row = rows[Math.floor((y + scroller.scrollTop - AXIS) / ROW)];
  if (!row) return null;
  const time = timeAt(x), slack = (view.end - view.begin) / (width - GUTTER) * 2;
  for (let i = Math.max(0, firstOf(row.ops, (op) => bodyEnd(op) + slack > time)); i < row.ops.length && D.begin[row.ops[i]] - slack <= time; ++i)
    return { op: row.ops[i] };
  const at = firstOf(row.marks, (m) => m.end > time);
  return at < row.marks.length && row.marks[at].begin <= time ? { mark: row.marks[at] } : null;
}

let drag = null;
canvas.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  drag = { x: event.clientX, y: event.clientY, begin: view.begin, end: view.end, top: scroller.scrollTop, moved: false };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  const box = canvas.getBoundingClientRect();
  if (!drag) return showTip(thingAt(event.clientX - box.left, event.clientY - box.top), event.clientX, event.clientY);
  const dx = event.clientX - drag.x;
  if (Math.abs(dx) + Math.abs(event.clientY - drag.y) > 3) drag.moved = true;
  if (!drag.moved) return;
  canvas.classList.add("dragging");
  showTip(null);
  const time = dx / (width - GUTTER) * (drag.end - drag.begin);
  scroller.scrollTop = drag.top - (event.clientY - drag.y);
  show(drag.begin - time, drag.end - time);
});
canvas.addEventListener("pointerup", (event) => {
  if (drag && !drag.moved) {
    const box = canvas.getBoundingClientRect(), thing = thingAt(event.clientX - box.left, event.clientY - box.top);
    view.selected = thing && thing.op !== undefined ? thing.op : -1;
    showDetails();
    redraw();
  }
  drag = null;
  canvas.classList.remove("dragging");
});
canvas.addEventListener("pointerleave", () => showTip(null));
canvas.addEventListener("dblclick", zoomToSelected);
canvas.addEventListener("wheel", (event) => {
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 150), timeAt(event.clientX - canvas.getBoundingClientRect().left));
  } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    pan((event.deltaX || event.deltaY) / (width - GUTTER));
  }
}, { passive: false });

let brush = null;
profile.addEventListener("pointerdown", (event) => {
  brush = profileTime(event.offsetX);
  profile.setPointerCapture(event.pointerId);
});
profile.addEventListener("pointermove", (event) => {
  if (brush === null) return;
  const to = profileTime(event.offsetX);
  if (Math.abs(to - brush) > D.length / 400) show(Math.min(brush, to), Math.max(brush, to));
});
profile.addEventListener("pointerup", () => { brush = null; });
profile.addEventListener("dblclick", showAll);

scroller.addEventListener("scroll", redraw);
addEventListener("resize", redraw);
byId("grouping").addEventListener("change", (event) => setGrouping(event.target.value));
byId("find").addEventListener("input", search);
byId("in").onclick = () => zoom(0.6, focusTime());
byId("out").onclick = () => zoom(1 / 0.6, focusTime());
byId("all").onclick = showAll;
byId("path").onclick = () => nextOnPath(1);
byId("help").onclick = toggleHelp;
for (const row of document.querySelectorAll("tr[data-op] button"))
  row.onclick = () => { select(Number(row.closest("tr").dataset.op)); byId("canvas").scrollIntoView({ block: "nearest" }); };
for (const button of document.querySelectorAll("button[data-find]"))
  button.onclick = () => { byId("find").value = button.dataset.find; search(); byId("find").scrollIntoView({ block: "nearest" }); };

function paintLegend() {
  for (const square of document.querySelectorAll("i.kind")) {
    const name = D.names.indexOf(square.dataset.name);
    if (name >= 0) square.style.background = colour(name);
  }
  const causes = [...new Set(rows.flatMap((row) => row.marks.map((mark) => mark.cause)))];
  const called = { "stage full": "waits: stage full", "stage empty": "waits: stage empty", var: "waits for a Var", all: "waits for all", room: "waits for room", gil: "waits for the GIL" };
  byId("legend").replaceChildren(...causes.slice(0, 9).map((cause) => {
    const square = element("i");
    square.style.background = theme.cause[cause];
    return element("span", "", square, idleMarks.some((m) => m.cause === cause && cause !== "gil" && workerThreads.has(m.thread)) ? `idle: ${cause}` : called[cause]);
  }));
}
const repaint = () => { readTheme(); paintLegend(); redraw(); };
dark.addEventListener("change", repaint);
// On paper: everything, in light colours, with twice the dots.
addEventListener("beforeprint", () => { forced = 2; showTip(null); readTheme(); paintLegend(); drawAll(); });
addEventListener("afterprint", () => { forced = null; repaint(); });

readTheme();
group("worker");
showAll();
paintLegend();
drawAll();
document.documentElement.dataset.ready = String(count);
