// Curves over steps: one cursor for all charts of a page, smoothing, log scale, alarms on the axis.

"use strict";
{
  const { Plot, html, useEffect, useMemo, useRef, useState, short, percent, Name } = pg;

  const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [14, 4], [4, 2, 1, 2, 1, 2]];
  const COLOURS = 6;

  // A line is { label, points: [[x, y | null], …] }. `share`: numbers from 0 to 1, shown in per cent.
  function Chart({ title, unit, note, lines, share, smooth = 0, log = false, alarms = [], chance = null, onPick }) {
    const box = useRef(null);
    const plot = useRef(null);
    const [at, setAt] = useState(null);
    const theme = useTheme();
    const data = useMemo(() => aligned(lines, smooth, log), [lines, smooth, log]);
    const live = useRef({});
    live.current = { alarms, chance, onPick, setAt, share };
    const shape = JSON.stringify([lines.map((line) => line.label), Boolean(smooth), log, share, theme]);
    useEffect(() => {
      const made = new Plot(options(lines, Boolean(smooth), log, live, box.current.clientWidth), data, box.current);
      plot.current = made;
      const observer = new ResizeObserver(() => made.setSize({ width: box.current.clientWidth, height: 170 }));
      observer.observe(box.current);
      return () => {
        observer.disconnect();
        made.destroy();
        plot.current = null;
      };
    }, [shape]);
    useEffect(() => plot.current?.setData(data), [data]);
    const said = lines.map((line) => `${line.label}: ${spoken(line.points, share)}`).join("; ");
    return html`<figure class="chart">
      <figcaption><b><${Name} text=${title} /></b>${unit && html` <span class="unit">${unit}</span>`}</figcaption>
      <div class="plot" role="img" aria-label=${`${title}. ${said}`} ref=${box}></div>
      <ul class="legend">
        ${lines.map((line, index) => html`<li key=${index} class=${`s${index % COLOURS}`}>
          <${Swatch} index=${index} /> <${Name} text=${line.label} /> <b>${valueAt(data, index, smooth, at, share)}</b>
        </li>`)}
      </ul>
      ${note && html`<p class="note">${note}</p>`}
    </figure>`;
  }

  // What comes after the last colour has the first colour again and another dash.
  const dashOf = (index) => DASHES[(index + Math.floor(index / COLOURS)) % DASHES.length];

  function Swatch({ index }) {
    return html`<svg class="swatch" viewBox="0 0 26 8" aria-hidden="true">
      <path class="line" d="M0 4H26" stroke-dasharray=${dashOf(index).join(" ")} />
    </svg>`;
  }

  // A curve the size of a word. Thousands of points are drawn as the means of at most `bins`.
  function Sparkline({ points, label, bins = 60 }) {
    const known = binned(points.filter(([, y]) => typeof y === "number"), bins);
    if (!known.length) return html`<span class="none" aria-label=${`${label}: not measured`}>–</span>`;
    const [xs, ys] = [known.map((point) => point[0]), known.map((point) => point[1])];
    const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const x = (value) => (right > left ? (value - left) / (right - left) : 0.5) * 96 + 2;
    const y = (value) => 22 - (high > low ? (value - low) / (high - low) : 0.5) * 20;
    const path = known.map(([a, b], index) => `${index ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
    return html`<svg class="spark" viewBox="0 0 100 24" role="img" aria-label=${`${label}: ${spoken(points)}`}>
      <path class="line" d=${path} /><circle cx=${x(xs.at(-1))} cy=${y(ys.at(-1))} r="2" />
    </svg>`;
  }

  function binned(points, bins) {
    const size = Math.ceil(points.length / bins);
    if (size <= 1) return points;
    const mean = (group, axis) => group.reduce((sum, point) => sum + point[axis], 0) / group.length;
    const groups = Array.from({ length: Math.ceil(points.length / size) }, (_, i) => points.slice(i * size, (i + 1) * size));
    return groups.map((group) => [mean(group, 0), mean(group, 1)]);
  }

  // What a curve does, in words, for who can't see it.
  function spoken(points, share) {
    const known = points.filter(([, y]) => typeof y === "number");
    if (!known.length) return "not measured";
    const say = share ? percent : short;
    return `from ${say(known[0][1])} at ${short(known[0][0])} to ${say(known.at(-1)[1])} at ${short(known.at(-1)[0])}`;
  }

  // All lines on common x values, as uPlot wants them; with smoothing the raw lines, then their means over the last points.
  function aligned(lines, smooth, log) {
    const xs = [...new Set(lines.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
    const place = new Map(xs.map((x, index) => [x, index]));
    const columns = lines.map((line) => {
      const column = new Array(xs.length).fill(undefined);
      for (const [x, y] of line.points) column[place.get(x)] = typeof y === "number" && !(log && y <= 0) ? y : null;
      return column;
    });
    return smooth ? [xs, ...columns, ...columns.map((column) => means(column, smooth))] : [xs, ...columns];
  }

  // The mean of each value and those before it. Too few of them, such as evaluations, stay as they are.
  function means(column, size) {
    if (column.filter((value) => typeof value === "number").length < 2 * size) return column;
    const recent = [];
    return column.map((value) => {
      if (typeof value !== "number") return value;
      recent.push(value);
      if (recent.length > size) recent.shift();
      return recent.reduce((sum, one) => sum + one, 0) / recent.length;
    });
  }

  function valueAt(data, index, smooth, at, share) {
    const column = data[1 + index + (smooth ? (data.length - 1) / 2 : 0)];
    let place = at ?? column.length - 1;
    if (at === null) while (place > 0 && typeof column[place] !== "number") place--;
    const value = column[place];
    return typeof value === "number" ? (share ? percent(value, 1) : short(value)) : "";
  }

  function options(lines, smoothed, log, live, width) {
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const line = (index, faint) => ({
      label: String(index),
      stroke: colour(`--s${index % COLOURS}`) + (faint ? "55" : ""),
      width: faint ? 1 : 2,
      dash: faint ? [] : dashOf(index),
      spanGaps: lines.length > 1, // other lines may have other steps; null stays a gap
      points: { show: (u) => !faint && u.data[0].length < 40, size: 5 },
    });
    const every = lines.map((_, index) => index);
    const axis = { stroke: colour("--soft"), font: "12px system-ui", grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false } };
    return {
      width: width || 300,
      height: 170,
      padding: [10, 10, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: "steps" }, y: false, points: { size: 7 } },
      scales: {
        x: { time: false, range: (u, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) },
        y: log ? { distr: 3 } : { range: (u, low, high) => yRange(low, high, live.current.share) },
      },
      series: [{}, ...(smoothed ? every.map((index) => line(index, true)) : []), ...every.map((index) => line(index, false))],
      axes: [
        { ...axis, size: 28, values: (u, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : "")) },
        { ...axis, size: 52, values: (u, ticks) => ticks.map((tick) => (tick === null ? "" : live.current.share ? percent(tick) : short(tick))) },
      ],
      hooks: {
        setCursor: [(u) => live.current.setAt(u.cursor.idx ?? null)],
        draw: [(u) => drawMarks(u, live.current, colour)],
        ready: [(u) => u.over.addEventListener("click", () => {
          if (u.cursor.idx !== null && !u.select.width) live.current.onPick?.(u.data[0][u.cursor.idx]);
        })],
      },
    };
  }

  // Room above and below; shares stay between 0 and 1, and what never changes is a line in the middle.
  function yRange(low, high, share) {
    if (low === null || high === null) return [0, 1];
    if (share && low >= 0 && high <= 1) {
      const pads = { min: { pad: 0.05, soft: 0, mode: 1 }, max: { pad: 0.05, hard: 1.02 } };
      return low === high ? [0, 1] : Plot.rangeNum(low, high, pads);
    }
    return low === high ? [low - Math.abs(low || 1), high + Math.abs(high || 1)] : Plot.rangeNum(low, high, 0.1, true);
  }

  // Alarms as bars on the step axis, and the line where a coin would be.
  function drawMarks(u, { alarms, chance }, colour) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.fillStyle = colour("--bad");
    for (const { first, last } of alarms) {
      const [from, to] = [u.valToPos(first - 0.5, "x", true), u.valToPos(last + 0.5, "x", true)];
      ctx.globalAlpha = 0.1;
      ctx.fillRect(from, bbox.top, Math.max(2, to - from), bbox.height);
      ctx.globalAlpha = 1;
      ctx.fillRect(from, bbox.top + bbox.height - 4, Math.max(3, to - from), 4);
    }
    if (chance !== null) {
      const y = u.valToPos(chance, "y", true);
      ctx.strokeStyle = colour("--soft");
      ctx.setLineDash([2, 4]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
    }
    ctx.restore();
  }

  // "dark" or "light": colours on a canvas do not follow by themselves.
  function useTheme() {
    const query = useMemo(() => matchMedia("(prefers-color-scheme: dark)"), []);
    const [dark, setDark] = useState(query.matches);
    useEffect(() => {
      const changed = () => setDark(query.matches);
      query.addEventListener("change", changed);
      return () => query.removeEventListener("change", changed);
    }, []);
    return dark ? "dark" : "light";
  }

  Object.assign(pg, { Chart, Swatch, Sparkline });
}
