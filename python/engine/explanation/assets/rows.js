// Rows of the timeline, for each way of grouping. A row has a label, and slices that do not overlap, by their begin:
// ops (numbers), and marks: {begin, end, kind, text}, which are idle times and waits.
const poolOf = (thread) => thread.includes("/") ? thread.slice(0, thread.lastIndexOf("/")) : thread;
const collate = new Intl.Collator("en", { numeric: true }).compare;
const workerThreads = new Set(D.threads.slice(0, D.workers));

const opsBy = (key) => {
  const groups = new Map();
  for (let op = 0; op < count; ++op) {
    const k = key(op);
    if (!groups.has(k)) groups.set(k, []);
    groups.get(k).push(op);
  }
  return groups;
};

// As few rows as hold the ops without overlap: each goes to the first row that is free.
function packed(label, ops) {
  const rows = [], free = [];
  for (const op of ops) {
    let at = free.findIndex((end) => end <= D.begin[op]);
    if (at < 0) {
      if (rows.length >= 64) at = free.indexOf(Math.min(...free));  // drawn over one another
      else { at = rows.length; rows.push({ label: at ? "" : label, ops: [], marks: [] }); }
    }
    rows[at].ops.push(op);
    free[at] = Math.max(free[at] || 0, bodyEnd(op));
  }
  return rows;
}

const waitMarks = D.waits.map(([cause, thread, begin, took, name]) => ({
  thread: D.threads[thread], begin, end: begin + took, cause, name,
  text: `waits: ${cause}${name ? ` (${name})` : ""}`, wait: true
}));
const idleMarks = D.idle.map(([thread, begin, end, cause]) => ({
  thread: D.threads[thread], begin, end, cause, text: `idle: ${cause}`, wait: false
}));

function rowsByWorker() {
  const groups = opsBy(threadOf);
  for (const thread of workerThreads) if (!groups.has(thread)) groups.set(thread, []);
  for (const wait of waitMarks) if (!groups.has(wait.thread)) groups.set(wait.thread, []);
  // Workers first, then the others.
  const threads = [...groups.keys()].sort((a, b) => workerThreads.has(b) - workerThreads.has(a) || collate(a, b));
  return threads.flatMap((thread) => {
    const rows = packed(thread, groups.get(thread));
    if (!rows.length) rows.push({ label: thread, ops: [], marks: [] });
    const marks = workerThreads.has(thread) ? idleMarks : waitMarks;
    rows[0].marks = marks.filter((mark) => mark.thread === thread);
    return rows;
  });
}
function rowsByPool() {
  const groups = opsBy((op) => poolOf(threadOf(op)));
  return [...groups.keys()].sort(collate).flatMap((pool) => packed(pool, groups.get(pool)));
}
// A stage's producers run under its name, and whoever waits for the stage names it.
function rowsByStage() {
  const stages = new Set(waitMarks.filter((w) => w.cause.startsWith("stage")).map((w) => w.name));
  const pools = new Set([...workerThreads].map(poolOf));
  const of = (op) => stages.has(threadOf(op)) ? threadOf(op) : pools.has(poolOf(threadOf(op))) ? poolOf(threadOf(op)) : threadOf(op);
  const groups = opsBy(of);
  const rows = [];
  for (const stage of [...stages].sort(collate))
    for (const cause of ["stage full", "stage empty"]) {
      const marks = waitMarks.filter((w) => w.name === stage && w.cause === cause);
      if (marks.length) rows.push({ label: `${stage}: ${cause.slice(6)}`, ops: [], marks });
    }
  for (const name of [...groups.keys()].sort(collate)) rows.push(...packed(name, groups.get(name)));
  return rows;
}
function rowsByOp() {
  const groups = opsBy(nameOf);
  const total = (ops) => ops.reduce((sum, op) => sum + D.took[op], 0);
  const names = [...groups.keys()].map((name) => [total(groups.get(name)), name]).sort((a, b) => b[0] - a[0]);
  return names.slice(0, 200).flatMap(([, name]) => packed(name, groups.get(name)));
}

const groupings = { worker: rowsByWorker, pool: rowsByPool, stage: rowsByStage, op: rowsByOp };
let rows = [], rowOf = new Int32Array(count);
function group(by) {
  view.grouping = by;
  rows = groupings[by]();
  rowOf.fill(-1);
  rows.forEach((row, i) => { for (const op of row.ops) rowOf[op] = i; });
}
