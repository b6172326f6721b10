// The curves of a run, and of several runs laid over each other.

"use strict";
{
  const { Chart, Field, Name, SourceName, Swatch, Waiting, html, setQuery, shortName } = pg;
  const { useData, useEffect, useMemo, useState } = pg;

  const MOST_LINES = 12;

  function CurveControls({ query, groups = [], more = false }) {
    return html`<div class="controls" role="group" aria-label="how curves are drawn">
      <label>Smooth <input type="range" min="0" max="30" value=${query.smooth ?? 0} aria-label="mean over the last steps"
        onInput=${(event) => setQuery({ smooth: event.target.value === "0" ? "" : event.target.value })} />
        <output>${query.smooth ? `mean of ${query.smooth}` : "off"}</output></label>
      <label><input type="checkbox" checked=${query.log === "1"}
        onChange=${(event) => setQuery({ log: event.target.checked ? "1" : "" })} /> log scale</label>
      ${groups.length > 1 && html`<label>Show <select value=${query.group ?? ""}
        onChange=${(event) => setQuery({ group: event.target.value })}>
        <option value="">all</option>${groups.map((group) => html`<option key=${group} value=${group}>${group}</option>`)}
      </select></label>`}
      ${more && html`<${Field} label="Metric" value=${query.metric} placeholder="any name, such as kl"
        onChange=${(metric) => setQuery({ metric })} />`}
    </div>`;
  }

  function pointsOf(metrics, { name, phase }) {
    const logged = metrics.phases[phase];
    const values = logged && Object.hasOwn(logged.values, name) ? logged.values[name] : null;
    return values && logged.at.map((at, index) => [at, values[index]]);
  }

  // All charts of a run. A click goes to the debates of that step; where an alarm sounds, to those that set it off.
  function Curves({ source, metrics, query, onStep }) {
    const { charts } = source;
    const groups = [...new Set(charts.map((chart) => chart.group))];
    const drawn = useMemo(() => [...charts, ...foundCharts(metrics, charts, query.metric)].map((chart) => ({
      ...chart,
      lines: chart.lines
        .map((line) => ({ label: line.label, points: pointsOf(metrics, line) }))
        .filter((line) => line.points?.some(([, y]) => y !== null)),
    })).filter((chart) => chart.lines.length), [metrics, charts, query.metric]);
    const wanted = drawn.filter((chart) => chart.found || (!query.metric && (!query.group || chart.group === query.group)));
    return html`<section aria-label="curves">
      <${CurveControls} query=${query} groups=${groups} more=${true} />
      ${!wanted.length && html`<p class="empty">
        ${query.metric ? "No metric has this name." : "Nothing has been measured yet."}</p>`}
      <${Groups} charts=${wanted} draw=${(chart) => html`<${Chart} ...${chart} smooth=${Number(query.smooth) || 0}
        log=${query.log === "1"}
        alarms=${chart.axis === "step" ? metrics.alarms : []} onPick=${chart.axis === "step" ? onStep : undefined} />`} />
    </section>`;
  }

  function Groups({ charts, draw }) {
    const groups = [...new Set(charts.map((chart) => chart.group))];
    return groups.map((group) => html`<section key=${group} class="group"><h3>${group}</h3><div class="charts">
      ${charts.filter((chart) => chart.group === group).map((chart) => html`<div key=${chart.title}>${draw(chart)}</div>`)}
    </div></section>`);
  }

  // Charts of metrics whose names hold the words searched for.
  function foundCharts(metrics, charts, find) {
    if (!find) return [];
    const names = Object.entries(metrics.phases).flatMap(([phase, { values }]) => Object.keys(values).map((name) => ({ name, phase })));
    const fits = names.filter(({ name }) => name.toLowerCase().includes(find.toLowerCase())).slice(0, 60);
    return fits.map(({ name, phase }) => ({
      found: true, group: "Metrics by name", title: name, unit: "", share: false, note: null, chance: null,
      axis: phase === "warm" ? "warm step" : "step", lines: [{ name, label: phase, phase }],
    }));
  }

  // The same charts with a line for each run.
  function Overlay({ sources, query }) {
    const [loaded, setLoaded] = useState({});
    const ready = sources.filter((source) => loaded[source.id]?.metrics && loaded[source.id]?.detail);
    const charts = useMemo(() => overlaid(ready.map((source) => ({ source, ...loaded[source.id] }))), [ready.map((one) => one.id).join(), loaded]);
    const last = (source) => source.name.split("/").at(-1);
    const name = new Set(sources.map(last)).size === sources.length ? last : shortName;
    return html`<div class="overlay">
      ${sources.map((source) => html`<${Load} key=${source.id} id=${source.id}
        onLoad=${(data) => setLoaded((old) => ({ ...old, [source.id]: data }))} />`)}
      <ul class="legend large">${sources.map((source, index) => html`<li key=${source.id} class=${`s${index % 6}`}>
        <${Swatch} index=${index} /> <${SourceName} source=${source} /></li>`)}</ul>
      <${CurveControls} query=${query} groups=${[...new Set(charts.map((chart) => chart.group))]} />
      ${!charts.length && html`<${Waiting} state=${{}} what="curves" />`}
      <${Groups} charts=${charts.filter((chart) => !query.group || chart.group === query.group)}
        draw=${(chart) => html`<${Chart} ...${chart}
          lines=${chart.lines.map((line) => ({ ...line, label: name(line.source) }))}
            smooth=${Number(query.smooth) || 0} log=${query.log === "1"} />`} />
    </div>`;
  }

  function Load({ id, onLoad }) {
    const [detail, metrics] = [useData(["source", id]), useData(["metrics", id])];
    useEffect(() => {
      if (detail.data && metrics.data) onLoad({ detail: detail.data, metrics: metrics.data });
    }, [detail.data, metrics.data]);
    return detail.error || metrics.error ? html`<p class="failed"><${Name} text=${detail.error ?? metrics.error} />
      </p>` : null;
  }

  // One chart for each line of each chart, so that a colour is a run. What is 0 in all of them is left out.
  function overlaid(runs) {
    const charts = new Map();
    for (const { source, detail, metrics } of runs) {
      for (const chart of detail.charts) {
        for (const line of chart.lines) {
          const points = pointsOf(metrics, line);
          if (!points?.some(([, y]) => y !== null)) continue;
          const title = chart.lines.length > 1 ? `${chart.title}: ${line.label}` : chart.title;
          const one = charts.get(`${chart.group}/${title}`) ?? { ...chart, title, note: null, lines: [] };
          if (one.lines.length < MOST_LINES) one.lines.push({ source, points });
          charts.set(`${chart.group}/${title}`, one);
        }
      }
    }
    return [...charts.values()].filter(({ lines }) => lines.some(({ points }) => points.some(([, y]) => y)));
  }

  Object.assign(pg, { Curves, Overlay });
}
