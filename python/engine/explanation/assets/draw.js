// Draws the timeline. Only what is in view is looked at, and what would lie on a pixel that is painted is left out.
const canvas = byId("canvas"), scroller = byId("scroller");
const PAPER = 1040;  // pixels of CSS across a landscape A4 page
const ROW = 26, AXIS = 22, GUTTER = 132;
let theme = {}, width = 0, height = 0, forced = null;
const dark = matchMedia("(prefers-color-scheme: dark)");

// Ten hues that stay apart for colour-blind eyes; names of ops take them in the order of their total time.
const HUES = [[212, 46], [168, 38], [266, 30], [42, 48], [190, 52], [322, 26], [95, 30], [232, 34], [20, 34], [145, 26]];
const hueOfName = new Map();
{
  const totals = new Array(D.names.length).fill(0);
  for (let op = 0; op < count; ++op) totals[D.name[op]] += D.took[op];
  totals.map((t, i) => [t, i]).sort((a, b) => b[0] - a[0]).forEach(([, i], place) => hueOfName.set(i, HUES[place % HUES.length]));
}
const isDark = () => dark.matches && !forced;
function colour(name, lift = 0) {
  const [hue, strength] = hueOfName.get(name);
  return isDark() ? `hsl(${hue} ${strength}% ${36 + lift}%)` : `hsl(${hue} ${strength + 8}% ${76 - lift}%)`;
}
function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "card", "ink", "soft", "line", "row", "accent", "focus", "found", "dispatch", "dependency", "empty",
    "full", "gil", "nothing"]) theme[name] = style.getPropertyValue(`--${name}`).trim();
  theme.cause = { "dispatch": theme.dispatch, "dependency": theme.dependency, "stage empty": theme.empty,
    "stage full": theme.full, "gil": theme.gil, "nothing ready": theme.nothing, "var": theme.dependency, "all": theme.nothing,
    "room": theme.full };
}
const xOf = (time) => GUTTER + (time - view.begin) / (view.end - view.begin) * (width - GUTTER);
const timeAt = (x) => view.begin + (x - GUTTER) / (width - GUTTER) * (view.end - view.begin);
const yOf = (row) => AXIS + row * ROW;

function fit(target, cssWidth, cssHeight) {
  const dots = forced || window.devicePixelRatio || 1;
  target.width = Math.round(cssWidth * dots);
  target.height = Math.round(cssHeight * dots);
  target.style.height = forced ? "auto" : `${cssHeight}px`;  // paper keeps the shape, whatever its width
  const pen = target.getContext("2d");
  pen.setTransform(dots, 0, 0, dots, 0, 0);
  pen.font = "12px system-ui, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif";
  pen.textBaseline = "middle";
  return pen;
}

// The first of a sorted list for which `past` holds.
function firstOf(list, past) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (past(list[middle])) high = middle; else low = middle + 1;
  }
  return low;
}

function ticks(length, room) {
  const raw = length / Math.max(2, room / 110), power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= raw);
}
function drawAxis(pen) {
  const step = ticks(view.end - view.begin, width - GUTTER);
  pen.fillStyle = theme.card;
  pen.fillRect(0, 0, width, AXIS);
  pen.textAlign = "left";
  for (let at = Math.ceil(view.begin / step) * step; at < view.end; at += step) {
    const x = Math.round(xOf(at)) + 0.5;
    pen.strokeStyle = theme.line;
    pen.beginPath(); pen.moveTo(x, AXIS - 6); pen.lineTo(x, height); pen.stroke();
    pen.fillStyle = theme.soft;
    if (x < width - 50) pen.fillText(Math.abs(at) < step / 1e6 ? "0" : duration(at), x + 4, AXIS / 2);
  }
}

function drawMarks(pen, row, y) {
  let painted = -1;
  const marks = row.marks, ops = row.ops.length > 0;
  for (let i = firstOf(marks, (m) => m.end > view.begin); i < marks.length && marks[i].begin < view.end; ++i) {
    const x = Math.max(xOf(marks[i].begin), GUTTER), right = Math.min(xOf(marks[i].end), width);
    if (right <= painted) continue;
    const wide = Math.max(right - x, 0.7);
    pen.fillStyle = theme.cause[marks[i].cause];
    if (marks[i].cause === "gil" && ops) pen.fillRect(x, y + 2, wide, 4);
    else {
      pen.fillRect(x, y + ROW - 8, wide, 5);
      if (wide > 90 && !ops) {
        pen.fillStyle = theme.soft;
        pen.fillText(cut(pen, marks[i].text, wide - 8), x + 4, y + ROW / 2 - 3);
      }
    }
    painted = Math.max(painted, Math.floor(right));
  }
}

function cut(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let length = Math.floor(text.length * room / pen.measureText(text).width);
  while (length > 0 && pen.measureText(text.slice(0, length) + "…").width > room) --length;
  return length > 0 ? text.slice(0, length) + "…" : "";
}

function drawOps(pen, row, y) {
  const ops = row.ops;
  let painted = -1;
  for (let i = firstOf(ops, (op) => bodyEnd(op) > view.begin); i < ops.length && D.begin[ops[i]] < view.end; ++i) {
    const op = ops[i], x = Math.max(xOf(D.begin[op]), GUTTER), right = Math.min(xOf(bodyEnd(op)), width);
    const marked = onPath[op] || found[op];
    if (right <= painted && !marked) continue;
    const wide = Math.max(right - x, 1), roomy = wide > 6, accent = found[op] ? theme.found : theme.accent;
    const box = () => { pen.beginPath(); roomy ? pen.roundRect(x, y + 3, wide - 0.5, ROW - 6, 3) : pen.rect(x, y + 3, wide, ROW - 6); };
    pen.fillStyle = marked && wide <= 12 ? accent : skipped.has(op) ? theme.nothing : colour(D.name[op]);
    box(); pen.fill();
    if (marked && wide > 12) {  // a band and a border, so that the hue of its kind stays
      pen.strokeStyle = pen.fillStyle = accent;
      pen.beginPath(); pen.roundRect(x, y + 3, wide - 0.5, 5, [3, 3, 0, 0]); pen.fill();
      pen.lineWidth = 1.5;
      pen.beginPath(); pen.roundRect(x + 0.75, y + 3.75, wide - 2, ROW - 7.5, 3); pen.stroke();
      pen.lineWidth = 1;
    }
    if (wide > 28) {
      pen.fillStyle = theme.ink;
      pen.fillText(cut(pen, nameOf(op), wide - 10), x + 6, y + ROW / 2 + (marked ? 2 : 0.5));
    }
    painted = Math.max(painted, Math.floor(right));
  }
}

function centre(op, share) {
  const y = yOf(rowOf[op]) + ROW / 2;
  return [xOf(D.begin[op] + (bodyEnd(op) - D.begin[op]) * share), y];
}
function link(pen, from, to) {
  const [x0, y0] = centre(from, 1), [x1, y1] = centre(to, 0), bend = Math.min(60, Math.abs(x1 - x0) / 2);
  pen.beginPath(); pen.moveTo(x0, y0); pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1); pen.stroke();
}
const isShown = (op) => rowOf[op] >= 0;
function drawLinks(pen) {
  pen.strokeStyle = theme.accent;
  pen.globalAlpha = 0.6;
  pen.lineWidth = 1.3;
  const path = D.path;
  let last = firstOf(path, (op) => endOf(op) > view.begin);
  for (let i = Math.max(1, last); i < path.length && D.begin[path[i - 1]] < view.end; ++i)
    if (isShown(path[i]) && isShown(path[i - 1]) && rowOf[path[i]] !== rowOf[path[i - 1]] &&
        xOf(bodyEnd(path[i])) - xOf(D.begin[path[i - 1]]) > 14)
      link(pen, path[i - 1], path[i]);
  if (view.selected >= 0 && isShown(view.selected)) {
    pen.strokeStyle = theme.focus;
    pen.setLineDash([5, 3]);
    for (const before of D.after[view.selected].slice(0, 200)) if (isShown(before)) link(pen, before, view.selected);
    pen.setLineDash([]);
    for (const later of behind(view.selected).slice(0, 200)) if (isShown(later)) link(pen, view.selected, later);
  }
  pen.globalAlpha = 1;
  pen.lineWidth = 1;
}

function drawRows() {
  width = forced ? PAPER : scroller.clientWidth;
  const whole = AXIS + rows.length * ROW + 6;
  height = forced ? whole : Math.min(whole, Math.max(200, innerHeight * 0.62));
  const pen = fit(canvas, width, height), top = forced ? 0 : scroller.scrollTop;
  canvas.style.marginBottom = `${whole - height}px`;
  pen.fillStyle = theme.card;
  pen.fillRect(0, 0, width, height);
  pen.save();
  pen.beginPath(); pen.rect(0, AXIS, width, height); pen.clip();
  pen.translate(0, -top);
  const first = Math.max(0, Math.floor(top / ROW) - 1), last = Math.min(rows.length, Math.ceil((top + height) / ROW) + 1);
  for (let i = first; i < last; ++i)
    if (i % 2) { pen.fillStyle = theme.row; pen.fillRect(0, yOf(i), width, ROW); }
  pen.restore();
  drawAxis(pen);
  pen.save();
  pen.beginPath(); pen.rect(0, AXIS, width, height); pen.clip();
  pen.translate(0, -top);
  pen.save();
  pen.beginPath(); pen.rect(GUTTER, AXIS, width, yOf(rows.length)); pen.clip();
  for (let i = first; i < last; ++i) { drawMarks(pen, rows[i], yOf(i)); drawOps(pen, rows[i], yOf(i)); }
  drawLinks(pen);
  if (view.selected >= 0 && isShown(view.selected)) {
    const op = view.selected, x = xOf(D.begin[op]), y = yOf(rowOf[op]);
    pen.lineWidth = 2.5; pen.strokeStyle = theme.focus;
    pen.strokeRect(x - 1.5, y + 1.5, Math.max(xOf(bodyEnd(op)) - x, 1) + 3, ROW - 3);
    pen.lineWidth = 1;
  }
  pen.restore();
  pen.textAlign = "right";
  for (let i = first; i < last; ++i) {
    pen.fillStyle = theme.ink;
    pen.fillText(cut(pen, rows[i].label, GUTTER - 18), GUTTER - 10, yOf(i) + ROW / 2);
  }
  pen.textAlign = "left";
  pen.strokeStyle = theme.line;
  pen.beginPath(); pen.moveTo(GUTTER - 0.5, AXIS); pen.lineTo(GUTTER - 0.5, height + top); pen.stroke();
  pen.restore();
}

let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; drawAll(); });
}
function drawAll() { drawRows(); drawProfile(); }
