// What is said of an op, in the tip beside the pointer and below the timeline.
const tip = byId("tip"), details = byId("details"), said = byId("said");
const element = (tag, text, ...inside) => {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  made.append(...inside);
  return made;
};

function facts(op) {
  const out = [["took", duration(D.took[op])], ["began", `${duration(D.begin[op])} after the first op`], ["thread", threadOf(op)]];
  if (D.settled[op] >= 0) out.push(["asynchronous", `completed ${duration(D.settled[op] - D.begin[op])} after its begin`]);
  if (D.pushed[op] !== null) {
    out.push(["pushed", `${duration(D.begin[op] - D.pushed[op])} before it began${D.pusher[op] >= 0 ? `, by ${D.threads[D.pusher[op]]}` : ""}`]);
    const blocked = D.ready[op] - D.pushed[op];
    if (blocked > 0) out.push(["waited for ops", duration(blocked)]);
  }
  if (D.begin[op] > D.ready[op]) out.push(["queued", `${duration(D.begin[op] - D.ready[op])} from ready to begin`]);
  if (D.uses[op].length) out.push(["Vars", D.uses[op].slice(0, 12).map(([mode, v]) => `${mode} ${D.variables[v]}`).join(", ") +
    (D.uses[op].length > 12 ? ` and ${D.uses[op].length - 12} more` : "")]);
  if (D.plan[op] >= 0) out.push(["plan", `${D.plans[D.plan[op]]}, run ${D.run[op]}`]);
  if (D.site[op] >= 0) out.push(["from", D.sites[D.site[op]]]);
  if (skipped.has(op)) out.push(["skipped", "it did not run, because of an error or a cancel"]);
  return out;
}
const place = (op) => onPath[op] ? `op ${pathPlace.get(op) + 1} of ${D.path.length} on the critical path` : "";

function showTip(thing, x, y) {
  if (!thing) { tip.hidden = true; return; }
  tip.replaceChildren();
  if (thing.op !== undefined) {
    tip.append(element("b", nameOf(thing.op)));
    if (onPath[thing.op]) tip.append(element("span", place(thing.op)));
    for (const [what, text] of facts(thing.op)) tip.append(element("span", `${what}: ${text}`));
  } else {
    tip.append(element("b", thing.mark.text), element("span", duration(thing.mark.end - thing.mark.begin)));
    const why = D.causes[thing.mark.cause];
    if (why) tip.append(element("span", why));
  }
  tip.hidden = false;
  const box = tip.parentElement.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(x - box.left + 14, box.width - tip.offsetWidth - 8))}px`;
  const below = y - box.top + 18;
  tip.style.top = `${below + tip.offsetHeight > innerHeight - box.top ? Math.max(4, y - box.top - tip.offsetHeight - 12) : below}px`;
}

function opButtons(list) {
  const box = element("dd");
  for (const op of list.slice(0, 12)) {
    const button = element("button", nameOf(op));
    button.onclick = () => select(op);
    box.append(button);
  }
  if (list.length > 12) box.append(`and ${list.length - 12} more`);
  if (!list.length) box.append("no op");
  return box;
}
function showDetails() {
  const op = view.selected;
  details.hidden = op < 0;
  for (const row of document.querySelectorAll("tr[data-op]")) row.toggleAttribute("aria-current", Number(row.dataset.op) === op);
  if (op < 0) return;
  const title = element("h2", `${nameOf(op)} `);
  if (onPath[op]) title.append(element("em", place(op)));
  const list = element("dl");
  for (const [what, text] of facts(op)) list.append(element("dt", what), element("dd", text));
  list.append(element("dt", "came behind"), opButtons(D.after[op]), element("dt", "before"), opButtons(behind(op)));
  details.replaceChildren(title, list);
}

function select(op, say = true) {
  view.selected = op;
  if (op >= 0) {
    if (!isShown(op)) setGrouping("worker");
    reveal(op);
    const y = yOf(rowOf[op]);
    if (y < scroller.scrollTop + AXIS) scroller.scrollTop = y - AXIS - ROW;
    else if (y + 2 * ROW > scroller.scrollTop + height) scroller.scrollTop = y + 2 * ROW - height;
    if (say) said.textContent = [nameOf(op), duration(D.took[op]), `on ${threadOf(op)}`, place(op)].filter(Boolean).join(", ");
  }
  showDetails();
  redraw();
}
