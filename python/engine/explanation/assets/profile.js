// How many ops ran at once, over the whole trace: an overview, in which the part that is in view is marked.
const profile = byId("profile");
const steps = (() => {  // times and counts, from each time on
  const changes = new Float64Array(2 * count);
  const begins = Float64Array.from(D.begin).sort(), ends = Float64Array.from({ length: count }, (_, op) => endOf(op)).sort();
  const times = [], counts = [];
  let b = 0, e = 0;
  while (e < count) {
    const at = b < count && begins[b] < ends[e] ? begins[b] : ends[e];
    while (b < count && begins[b] === at) ++b;
    while (e < count && ends[e] === at) ++e;
    times.push(at);
    counts.push(b - e);
  }
  return { times, counts, most: counts.reduce((m, n) => Math.max(m, n), 1) };
})();

function drawProfile() {
  const high = 78, wide = forced ? PAPER : profile.clientWidth, pen = fit(profile, wide, high), room = wide - GUTTER;
  const x = (time) => GUTTER + (time + margin) / (D.length + 2 * margin) * room;
  const top = Math.max(D.workers, Math.min(steps.most, 4 * D.workers)) * 1.15, y = (n) => high - 4 - Math.min(n, top) / top * (high - 14);
  pen.fillStyle = theme.card;
  pen.fillRect(0, 0, wide, high);
  // A column shows the mean of what ran in it, so that nothing depends on which op a pixel meets.
  const columns = new Float64Array(Math.ceil(room) + 1);
  const per = (D.length + 2 * margin) / room;
  for (let i = 0; i + 1 < steps.times.length; ++i) {
    let from = (steps.times[i] + margin) / per;
    const to = (steps.times[i + 1] + margin) / per;
    while (from < to) {
      const next = Math.min(to, Math.floor(from) + 1);
      columns[Math.floor(from)] += steps.counts[i] * (next - from);
      from = next;
    }
  }
  pen.fillStyle = isDark() ? "hsl(212 40% 45%)" : "hsl(212 48% 68%)";
  pen.beginPath();
  pen.moveTo(GUTTER, y(0));
  columns.forEach((n, i) => { pen.lineTo(GUTTER + i, y(n)); pen.lineTo(GUTTER + i + 1, y(n)); });
  pen.lineTo(GUTTER + columns.length, y(0));
  pen.fill();
  pen.textAlign = "left";
  const labelled = [];
  const line = (n, text, ink, dash) => {
    pen.strokeStyle = ink;
    pen.setLineDash(dash);
    pen.beginPath(); pen.moveTo(GUTTER, y(n)); pen.lineTo(wide, y(n)); pen.stroke();
    pen.setLineDash([]);
    if (labelled.some((at) => Math.abs(at - y(n)) < 13)) return;
    labelled.push(y(n));
    pen.fillStyle = ink;
    pen.textAlign = "right";
    pen.fillText(text, GUTTER - 10, Math.min(Math.max(y(n), 8), high - 8));
  };
  line(D.workers, `${D.workers} worker${D.workers === 1 ? "" : "s"}`, theme.soft, [4, 3]);
  if (D.parallelism < top) line(D.parallelism, `work/path ${Number(D.parallelism.toPrecision(3))}`, theme.accent, [2, 3]);
  const left = Math.max(x(view.begin), GUTTER), right = Math.min(x(view.end), wide);
  if (right - left < room - 2 && !forced) {
    pen.fillStyle = isDark() ? "#0008" : "#fff9";
    pen.fillRect(GUTTER, 0, left - GUTTER, high);
    pen.fillRect(right, 0, wide - right, high);
    pen.strokeStyle = theme.focus;
    pen.strokeRect(left + 0.5, 0.5, Math.max(right - left - 1, 1), high - 1);
  }
}

const profileTime = (x) => (x - GUTTER) / (profile.clientWidth - GUTTER) * (D.length + 2 * margin) - margin;
