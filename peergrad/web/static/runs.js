// The first page: all runs, evaluations and transcripts; two or more can be laid over each other.

"use strict";
{
  const { Failed, Field, Interval, Name, SortHead, SourceName, Sparkline, Status, Waiting, address } = pg;
  const { count, go, has, html, many, percent, setQuery, visible } = pg;
  const { Overlay, sourceAddress, useData, useKeys, useMemo } = pg;

  const COLUMNS = {
    name: (source) => source.name,
    status: (source) => source.status,
    model: (source) => source.model,
    step: (source) => source.step,
    alarms: (source) => source.alarms.length,
    skipped: (source) => source.updates?.skipped ?? null,
    changed: (source) => source.changed,
  };

  function Runs({ query }) {
    const state = useData(["sources"]);
    const picked = (query.pick ?? "").split(",").filter(Boolean);
    const shown = useMemo(() => chosen(state.data?.sources ?? [], query), [state.data, query.find, query.sort]);
    useKeys({
      "/": { does: "filter the list", run: () => document.getElementById("find").focus() },
      j: { does: "next row", run: () => move(1) },
      k: { does: "row before", run: () => move(-1) },
    });
    if (!state.data) return html`<${Waiting} state=${state} what="what there is" />`;
    const pick = (id) => setQuery({ pick: (picked.includes(id) ? picked.filter((one) => one !== id) : [...picked, id]).join(",") });
    const parts = { run: [], eval: [], file: [] };
    for (const source of shown) parts[source.kind]?.push(source);
    const all = state.data.sources;
    return html`<main>
      <div class="bar">
        <h1>Runs and evaluations</h1>
        <${Field} id="find" label="Filter" value=${query.find} placeholder="name, model, task, status"
          onChange=${(find) => setQuery({ find })} />
      </div>
      ${!all.length && html`<p class="empty">Nothing to show yet. Train something
        ${" "}(<code>peergrad train --preset demo</code>), or name a folder: <code>peergrad view PATH</code>.</p>`}
      ${all.length > 0 && !shown.length && html`<p class="empty">None of ${all.length} fits the filter.</p>`}
      <${Picked} ids=${picked} all=${all} query=${query} />
      ${parts.run.length > 0 && html`<${RunTable} rows=${parts.run} picked=${picked} pick=${pick} by=${query.sort} />`}
      ${parts.eval.length > 0 && html`<${EvalTable} rows=${parts.eval} picked=${picked} pick=${pick} by=${query.sort} />`}
      ${parts.file.length > 0 && html`<${FileTable} rows=${parts.file} picked=${picked} pick=${pick} by=${query.sort} />`}
    </main>`;
  }

  function chosen(sources, { find = "", sort = "" }) {
    const wanted = find.toLowerCase().split(/\s+/).filter(Boolean);
    const about = ({ name, model, task, status, protocol, reward, alarms }) =>
      [name, model, task, status, protocol, reward, ...alarms.map((alarm) => alarm.name)].join(" ").toLowerCase();
    const kept = sources.filter((one) => wanted.every((word) => about(one).includes(word)));
    const key = COLUMNS[sort.replace(/^-/, "")];
    if (!key) return kept;
    const down = sort.startsWith("-") ? -1 : 1;
    return [...kept].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      return x === y ? 0 : x === null ? 1 : y === null ? -1 : (x < y ? -1 : 1) * down;
    });
  }

  // The cursor of j and k is the focus itself, so that Enter opens and a screen reader follows.
  function move(by) {
    const links = [...document.querySelectorAll("a.open")];
    const at = links.indexOf(document.activeElement);
    links[at < 0 ? 0 : Math.min(links.length - 1, Math.max(0, at + by))]?.focus();
  }

  function Head({ by, columns }) {
    return html`<thead><tr>${columns.map(([column, name, number]) =>
      column in COLUMNS
        ? html`<${SortHead} key=${name} column=${column} by=${by} number=${number} onSort=${(sort) => setQuery({ sort })}>
          ${name}<//>`
        : name ? html`<th key=${name} scope="col" class=${number ? "number" : ""}>${name}</th>` : html`<td></td>`,
    )}</tr></thead>`;
  }

  // What every row begins with; its name leads to the source, or to one of its pages.
  function First({ source, picked, pick, pages = [] }) {
    return html`<td class="pick"><input type="checkbox" checked=${picked.includes(source.id)}
      onChange=${() => pick(source.id)}
      aria-label=${`pick ${source.name}`} /></td>
      <th scope="row"><a class="open" href=${sourceAddress(source.id, ...pages)}><${SourceName} source=${source} /></a><${Problem}
        source=${source} /></th>
      <td><${Status} value=${source.status} /></td>`;
  }

  function RunTable({ rows, picked, pick, by }) {
    const curves = commonCurves(rows);
    const columns = [["", ""], ["name", "Run"], ["status", "Status"], ["model", "Model and task"], ["step", "Steps"],
      ...curves.map(({ label }) => ["", label]), ["alarms", "Alarms"], ["skipped", "Skipped", true], ["changed", "Changed"]];
    return html`<section><h2>Runs</h2><div class="scroll"><table class="list runs"><${Head} by=${by} columns=${columns} />
      <tbody>
      ${rows.map((source) => html`<tr key=${source.id}>
        <${First} ...${{ source, picked, pick }} />
        <td><${Model} source=${source} /></td>
        <td><${Progress} step=${source.step} steps=${source.steps} /></td>
        ${curves.map(({ name, label }) => html`<td key=${name} data-label=${label}><${Curve}
          curve=${source.curves.find((one) => one.name === name)} label=${label} /></td>`)}
        <td><${AlarmNames} alarms=${source.alarms} /></td>
        <td class="number" data-label="skipped">${skipped(source.updates)}</td>
        <td><${When} time=${source.changed} /></td>
      </tr>`)}
    </tbody></table></div></section>`;
  }

  // A model by the last parts of its name; all of it when pointed at.
  function Model({ source }) {
    const name = visible(source.model ?? "–");
    return html`<span class="model" title=${name}><bdi>${name.split("/").filter(Boolean).at(-1) ?? name}</bdi>
      <small>on <${Name} text=${source.task ?? "–"} />, <${Name} text=${source.protocol ?? "–"} />
        ${source.agents && ` ${source.agents} × ${source.rounds ?? "?"}`}</small></span>`;
  }

  // The curves that most of these runs have, at most three: a column is for comparing.
  function commonCurves(rows) {
    const found = new Map();
    for (const row of rows) {
      for (const { name, label } of row.curves) found.set(name, { name, label, runs: (found.get(name)?.runs ?? 0) + 1 });
    }
    return [...found.values()].sort((a, b) => b.runs - a.runs).slice(0, 3);
  }

  function Curve({ curve, label }) {
    if (!curve) return html`<span class="none">–</span>`;
    const last = curve.points.findLast(([, y]) => y !== null)?.[1];
    return html`<span class="curve"><${Sparkline} points=${curve.points} label=${label} /><small>
      ${curve.share ? percent(last) : pg.short(last)}</small></span>`;
  }

  function skipped(updates) {
    if (!updates?.total) return "–";
    const share = updates.skipped / updates.total;
    return html`<span class=${share > 0.05 ? "bad" : ""}>
      ${updates.skipped ? `${count(updates.skipped)} of ${count(updates.total)}` : "none"}</span>`;
  }

  function Progress({ step, steps }) {
    if (step === null) return html`<span class="none">–</span>`;
    const share = steps ? Math.min(1, step / steps) : 0;
    return html`<span class="progress">${count(step)}${steps ? ` of ${count(steps)}` : ""}
      <svg viewBox="0 0 60 4" preserveAspectRatio="none" aria-hidden="true"><path class="rail" d="M0 2H60" />
        <path class="bar" d=${`M0 2H${60 * share}`} /></svg></span>`;
  }

  function AlarmNames({ alarms }) {
    const names = [...new Set(alarms.map((alarm) => alarm.name))];
    if (!names.length) return html`<span class="none">none</span>`;
    return html`<span class="alarm-names">${names.slice(0, 3).map((name) => html`<span key=${name} class="alarm">⚑ <${Name}
      text=${name} /></span>`)}${names.length > 3 && ` and ${names.length - 3} more`}</span>`;
  }

  function Problem({ source }) {
    return html`${source.problem && html`<small class="bad"><${Name} text=${source.problem} /></small>`}
      ${source.indexed < 1 && html`<small>${percent(source.indexed)} read</small>`}`;
  }

  function When({ time }) {
    if (typeof time !== "number") return html`<span class="none">–</span>`;
    const date = new Date(time * 1000);
    const ago = (Date.now() - date) / 1000;
    const [size, unit] = ago < 5400 ? [60, "min"] : ago < 129600 ? [3600, "h"] : [86400, "days"];
    const text = ago < 90 ? "just now" : `${Math.round(ago / size)} ${unit} ago`;
    return html`<time datetime=${Number.isFinite(date.getTime()) ? date.toISOString() : ""} title=${date.toLocaleString()}>
      ${text}</time>`;
  }

  const FIRST = ["debate/winner", "direct/correct", "direct/majority"];

  function EvalTable({ rows, picked, pick, by }) {
    const labels = new Map(rows.flatMap((row) => row.headline.map((one) => [one.name, one.label])));
    const names = [...FIRST.filter((name) => labels.has(name)), ...[...labels.keys()].filter((name) => !FIRST.includes(name))];
    const shown = names.slice(0, 3).map((name) => [name, labels.get(name)]);
    const columns = [["", ""], ["name", "Evaluation"], ["status", "Status"], ["model", "Model and task"], ["step", "Questions"],
      ...shown.map(([, label]) => ["", label]), ["changed", "Changed"]];
    return html`<section><h2>Evaluations</h2><div class="scroll"><table class="list"><${Head} by=${by} columns=${columns} />
      <tbody>
      ${rows.map((source) => html`<tr key=${source.id}>
        <${First} ...${{ source, picked, pick }} />
        <td><${Model} source=${source} /></td>
        <td><${Progress} step=${source.step} steps=${source.steps} /></td>
        ${shown.map(([name, label]) => {
          const one = source.headline.find((row) => row.name === name) ?? {};
          return html`<td key=${name} data-label=${label}><span class="curve"><${Interval} ...${one} /><small>
            ${percent(one.value)}</small></span></td>`;
        })}
        <td><${When} time=${source.changed} /></td>
      </tr>`)}
    </tbody></table></div></section>`;
  }

  function FileTable({ rows, picked, pick, by }) {
    const columns = [["", ""], ["name", "Transcript"], ["status", "Status"], ["", "Debate"], ["", "Debates", true], ["changed", "Changed"]];
    return html`<section><h2>Transcripts</h2><div class="scroll"><table class="list"><${Head} by=${by} columns=${columns} />
      <tbody>
      ${rows.map((source) => html`<tr key=${source.id}>
        <${First} ...${{ source, picked, pick }} pages=${["debates"]} />
        <td><${Name} text=${source.protocol ?? "–"} />${source.agents && html` <small>${source.agents} agents</small>`}</td>
        <td class="number" data-label="debates">${count(source.debates)}</td>
        <td><${When} time=${source.changed} /></td>
      </tr>`)}
    </tbody></table></div></section>`;
  }

  // What can be done with those that are picked.
  function Picked({ ids, all, query }) {
    const sources = ids.map((id) => all.find((one) => one.id === id)).filter(Boolean);
    if (!sources.length) return null;
    const [runs, others] = [sources.filter((one) => one.kind === "run"), sources.filter((one) => one.kind !== "run")];
    const pair = ["compare", ...others.map((one) => one.id)];
    const why = others.length > 2 ? "Pick exactly two evaluations or transcripts to compare them question by question."
      : !has(pair) && "This export does not compare these two. Open them with `peergrad view`, or, of evaluations, export with more --max-mb.";
    return html`<section class="picked" aria-label="picked">
      <h2>${many(sources.length, "picked", "picked")}</h2><p><button class="plain"
        onClick=${() => setQuery({ pick: "" })}>clear</button>
        ${others.length === 2 && has(pair) && html` <button onClick=${() => go(address(pair))}>Compare question by question</button>`}
        ${sources.length === 1 && html` <span class="soft">Pick another one to compare.</span>`}
        ${others.length > 1 && why && html`<${Failed} error=${why} />`}</p>
      ${runs.length > 1 && html`<${Overlay} sources=${runs} query=${query} />`}
    </section>`;
  }

  Object.assign(pg, { Runs, When, Progress });
}
