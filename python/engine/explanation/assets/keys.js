// The keyboard. Keys work wherever the focus is, but not while somebody writes.
function nextOnPath(step) {
  const path = D.path;
  if (!path.length) return;
  const at = pathPlace.get(view.selected);
  let next;
  if (at !== undefined) next = at + step;
  else if (view.selected >= 0) {  // the path's op nearest in time
    const later = firstOf(path, (op) => D.begin[op] > D.begin[view.selected]);
    next = step > 0 ? later : later - 1;
  } else next = step > 0 ? 0 : path.length - 1;
  select(path[(next + path.length) % path.length]);
}
function nextInRow(step) {
  if (view.selected < 0) return select(rows.find((row) => row.ops.length).ops[0]);
  const ops = rows[rowOf[view.selected]].ops, at = ops.indexOf(view.selected) + step;
  if (at >= 0 && at < ops.length) select(ops[at]);
}
function nextFound(step) {
  if (!foundList.length) return;
  const later = firstOf(foundList, (op) => op > view.selected);
  const at = step > 0 ? later : firstOf(foundList, (op) => op >= view.selected) - 1;
  const place = (at + foundList.length) % foundList.length;
  select(foundList[place]);
  byId("found").textContent = `${place + 1} of ${foundList.length.toLocaleString("en")}`;
}
function zoomToSelected() {
  if (view.selected < 0) return;
  const took = Math.max(endOf(view.selected) - D.begin[view.selected], least / 2);
  show(D.begin[view.selected] - took * 0.6, endOf(view.selected) + took * 0.6);
}
function letGo() {
  byId("find").value = "";
  search();
  select(-1);
  canvas.focus();
}
const KEYS = {
  ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), a: () => pan(-0.15), d: () => pan(0.15),
  ArrowUp: () => { scroller.scrollTop -= 2 * ROW; }, ArrowDown: () => { scroller.scrollTop += 2 * ROW; },
  "+": () => zoom(0.6, focusTime()), "=": () => zoom(0.6, focusTime()), "-": () => zoom(1 / 0.6, focusTime()),
  w: () => zoom(0.6, focusTime()), s: () => zoom(1 / 0.6, focusTime()),
  0: showAll, Home: showAll, n: () => nextOnPath(1), p: () => nextOnPath(-1), "]": () => nextInRow(1), "[": () => nextInRow(-1),
  f: zoomToSelected, "/": () => byId("find").focus(), Enter: () => nextFound(1), "?": toggleHelp, Escape: letGo,
};
// Zooming keeps the selected op in place, if it is in view.
function focusTime() {
  const op = view.selected;
  return op >= 0 && D.begin[op] < view.end && endOf(op) > view.begin ? (Math.max(D.begin[op], view.begin) + Math.min(endOf(op), view.end)) / 2
    : (view.begin + view.end) / 2;
}
function toggleHelp() {
  byId("keys").hidden = !byId("keys").hidden;
  byId("help").setAttribute("aria-expanded", String(!byId("keys").hidden));
}
document.addEventListener("keydown", (event) => {
  const target = event.target instanceof Element ? event.target : document.body;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (target.id === "find") {
    if (event.key === "Enter") nextFound(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") letGo();
    else return;
    event.preventDefault();
    return;
  }
  if (target.matches("select, textarea, input")) return;
  if (event.key === "Enter" && target.matches("button, summary")) return;
  if (/^Arrow|^Home$/.test(event.key) && target !== canvas && target !== document.body) return;
  const act = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
