// What the page knows: the columns of the data, and what follows from them.
const D = JSON.parse(document.getElementById("data").textContent);
const count = D.begin.length;
const byId = (id) => document.getElementById(id);

const onPath = new Uint8Array(count);
const pathPlace = new Map();  // by op: which op of the path it is
D.path.forEach((op, i) => { onPath[op] = 1; pathPlace.set(op, i); });
const skipped = new Set(D.skipped);
const found = new Uint8Array(count);
let foundList = [];

const bodyEnd = (op) => D.begin[op] + D.took[op];
const endOf = (op) => Math.max(bodyEnd(op), D.settled[op]);
const nameOf = (op) => D.names[D.name[op]];
const threadOf = (op) => D.threads[D.thread[op]];

// The ops behind each op. Made when somebody first looks at an op.
let behindLists = null;
function behind(op) {
  if (!behindLists) {
    behindLists = Array.from({ length: count }, () => []);
    D.after.forEach((list, later) => { for (const before of list) behindLists[before].push(later); });
  }
  return behindLists[op];
}

// Nanoseconds as text: three digits, and the unit that suits.
function duration(nanos) {
  const size = Math.abs(nanos);
  for (const [unit, scale] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]])
    if (size >= scale) {
      const value = nanos / scale;
      return `${Math.abs(value) >= 1000 ? Math.round(value) : Number(value.toPrecision(3))} ${unit}`;
    }
  return `${Math.round(nanos)} ns`;
}

function find(text) {
  found.fill(0);
  foundList = [];
  const wanted = text.trim().toLowerCase();
  if (!wanted) return;
  const hits = (list) => new Set(list.flatMap((item, i) => item.toLowerCase().includes(wanted) ? [i] : []));
  const names = hits(D.names), plans = hits(D.plans), sites = hits(D.sites), vars = hits(D.variables);
  for (let op = 0; op < count; ++op)
    if (names.has(D.name[op]) || plans.has(D.plan[op]) || sites.has(D.site[op]) ||
        (vars.size && D.uses[op].some(([, v]) => vars.has(v)))) {
      found[op] = 1;
      foundList.push(op);
    }
}

// State of the view. Times are nanoseconds since the first op began.
const view = { begin: 0, end: Math.max(1, D.length), selected: -1, hovered: null, grouping: "worker" };
const margin = D.length * 0.01 + 1;
const least = 20;  // nanoseconds; closer there is nothing to see

function show(begin, end) {
  let length = Math.min(Math.max(end - begin, least), D.length + 2 * margin);
  begin = Math.min(Math.max(begin, -margin), D.length + margin - length);
  view.begin = begin;
  view.end = begin + length;
  redraw();
}
const showAll = () => show(-margin, D.length + margin);
const zoom = (factor, at = (view.begin + view.end) / 2) =>
  show(at - (at - view.begin) * factor, at + (view.end - at) * factor);
const pan = (share) => show(view.begin + share * (view.end - view.begin), view.end + share * (view.end - view.begin));
// Brings the op into view; zooms only if it would be too small or too large to see.
function reveal(op) {
  const length = view.end - view.begin, took = Math.max(endOf(op) - D.begin[op], 1);
  const middle = D.begin[op] + took / 2;
  const wanted = took < length / 400 ? took * 60 : took > length ? took * 1.5 : length;
  if (wanted !== length || D.begin[op] < view.begin || endOf(op) > view.end) show(middle - wanted / 2, middle + wanted / 2);
}
