// One run, evaluation or transcript: what it is, how it goes, what it took, and its settings.

"use strict";
{
  const { Curves, EvalResult, Failed, Name, Progress, SourceName, Status, Waiting, When, address } = pg;
  const { count, debateAddress, go, html, live, many, percent, seconds } = pg;
  const { short, setQuery, sourceAddress, useData, useState, words } = pg;

  function Source({ id, tab, query }) {
    const state = useData(["source", id]);
    if (!state.data) return html`<main><${Waiting} state=${state} what="the run" /></main>`;
    const { source } = state.data;
    return html`<main>
      <${SourceHead} detail=${state.data} tab=${tab} />
      ${state.error && html`<${Failed} error=${state.error} />`}
      ${tab === "settings" ? html`<${Settings} detail=${state.data} query=${query} />` : html`<${Overview}
        detail=${state.data} query=${query} key=${source.id} />`}
    </main>`;
  }

  // The head of every page about a source: its name, how it stands, and where else to look.
  function SourceHead({ detail, tab }) {
    const { source } = detail;
    const tabs = [["", source.kind === "eval" ? "Result" : "Curves"], ["debates", "Debates"], ["settings", "Settings"]];
    const shown = source.kind === "file" ? tabs.slice(1, 2) : tabs;
    return html`<header class="head">
      <h1><${SourceName} source=${source} /></h1>
      <p class="facts-line"><${Status} value=${source.status} />
        ${source.model && html`<span><${Name} text=${source.model} /></span>`}
        ${source.task && html`<span>on <${Name} text=${source.task} /></span>`}
        ${source.protocol && html`<span><${Name} text=${source.protocol} />
          ${source.agents && `, ${source.agents} agents`}${source.rounds && ` × ${source.rounds} round${source.rounds > 1 ? "s" : ""}`}</span>`}
        ${source.reward && html`<span>reward <${Name} text=${source.reward} /></span>`}
        ${source.step !== null && html`<${Progress} step=${source.step} steps=${source.steps} />`}
        <span class="soft">changed <${When} time=${source.changed} /></span></p>
      ${source.problem && html`<${Failed} error=${source.problem} />`}
      <nav class="tabs" aria-label="about this">
        ${shown.map(([key, name]) => html`<a key=${key} href=${sourceAddress(source.id, ...(key ? [key] : []))}
          aria-current=${tab === key ? "page" : undefined}>${name}</a>`)}
      </nav>
    </header>`;
  }

  function Overview({ detail, query }) {
    const { source } = detail;
    const metrics = useData(source.kind === "run" ? ["metrics", source.id] : null);
    const steps = detail.parts.filter((part) => part.kind === "step");
    const toStep = (step) => {
      const part = steps.findLast((one) => one.step <= step) ?? steps[0];
      // An export knows what set an alarm off where it begins.
      const sounded = detail.alarms.some(({ first, last }) => first <= step && step <= (live ? last : first));
      if (part) go(address(["source", source.id, "debates"], { part: part.name, flags: sounded ? "alarm" : "" }));
    };
    return html`
      <${Alarms} detail=${detail} />
      ${source.kind === "eval" && html`<${EvalResult} detail=${detail} />`}
      <div class="tables">
        ${detail.changes.length > 0 && html`<${Changes} rows=${detail.changes} />`}
        <div>${detail.used.length > 0 && html`<${Used} rows=${detail.used} updates=${source.updates} />`}
        <${Kept} detail=${detail} /></div>
      </div>
      ${source.kind === "run" && html`<h2>Curves</h2>${metrics.data ? html`<${Curves} source=${detail}
        metrics=${metrics.data} query=${query} onStep=${toStep} />` : html`<${Waiting} state=${metrics}
          what="metrics" />`}`}`;
  }

  function Changes({ rows }) {
    const say = (value, share) => (value === null ? "–" : share ? percent(value, 1) : short(value));
    const change = ({ before, after, share }) => {
      if (before === null || after === null) return "";
      return share ? `${pg.signed((after - before) * 100, 1)} points` : pg.signed(after - before);
    };
    return html`<section><h2>Before and after</h2><div class="scroll" tabindex="0"><table class="numbers">
      <thead><tr><td></td><th scope="col">before</th><th scope="col">after</th><th scope="col">change</th></tr>
        </thead>
      <tbody>${rows.map((row) => html`<tr key=${row.label}><th scope="row"><${Name} text=${row.label} /></th><td>
        ${say(row.before, row.share)}</td>
        <td><b>${say(row.after, row.share)}</b></td><td class="soft">${change(row)}</td></tr>`)}</tbody>
    </table></div>
    <p class="note">Self-play: means over the first and the last fifth of its steps. Held out: the first and the last evaluation.</p>
    </section>`;
  }

  function Used({ rows, updates }) {
    const money = rows.some((row) => typeof row.usd === "number");
    return html`<section><h2>What it took</h2><div class="scroll" tabindex="0"><table class="numbers">
      <thead><tr><td></td><th scope="col">times</th><th scope="col">debates</th>
        <th scope="col">tokens sampled</th><th scope="col">trained on</th>
        <th scope="col">time</th>${money && html`<th scope="col">US$</th>`}</tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.name}><th scope="row"><${Name} text=${row.name} /></th><td>
        ${count(row.times)}</td><td>${count(row.debates)}</td>
        <td>${count(row.sampled)}</td><td>${count(row.trained)}</td><td>${seconds(row.seconds)}</td>
        ${money && html`<td>${typeof row.usd === "number" ? row.usd.toFixed(2) : "–"}</td>`}</tr>`)}</tbody>
    </table></div>
    ${updates?.total > 0 && html`<p class=${updates.skipped > 0.05 * updates.total ? "note bad" : "note"}>
      ${updatesInWords(updates)}</p>`}</section>`;
  }

  function updatesInWords({ total, skipped, retried }) {
    const lost = skipped ? `${count(skipped)} skipped: nothing was learned from them` : "none skipped";
    const again = retried ? `; ${many(retried, "micro-batch", "micro-batches")} computed again` : "";
    return `${many(total, "update")}, ${lost}${again}.`;
  }

  function Kept({ detail }) {
    const size = (bytes) => (bytes > 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${Math.ceil(bytes / 1e3)} kB`);
    const { checkpoints, skipped, evals, parts } = detail;
    if (!checkpoints.length && !skipped.length && !parts.length && !evals.length) return null;
    const debates = parts.reduce((sum, part) => sum + part.debates, 0);
    return html`<section><h2>What is kept</h2><dl class="kept">
      ${parts.length > 0 && html`<div><dt>Debates</dt><dd><a href=${sourceAddress(detail.source.id, "debates")}>
        ${many(debates, "debate")}</a> in ${many(parts.length, "file")}</dd></div>`}
      ${evals.length > 0 && html`<div><dt>Evaluations</dt><dd>${evals.map((id, index) => html`<a key=${id}
        href=${sourceAddress(id)}>evaluation ${index + 1}</a> `)}</dd></div>`}
      ${checkpoints.length > 0 && html`<div><dt>Checkpoints</dt><dd>${checkpoints.map((one) => html`<span key=${one.name}
        class="chip"><${Name} text=${one.name} /> <small>${size(one.bytes)}</small></span> `)}</dd></div>`}
      ${skipped.length > 0 && html`<div><dt>Skipped updates</dt><dd>${skipped.map((one) => html`<span key=${one.name}
        class="chip bad"><${Name} text=${one.name} /></span> `)}</dd></div>`}
    </dl></section>`;
  }

  // Each alarm with when it sounded; opened, what was seen, what to do, and the debates that set it off.
  function Alarms({ detail }) {
    if (!detail.alarms.length) return null;
    return html`<section class="alarms" aria-label="alarms"><h2>Alarms</h2>
      ${detail.alarms.map((alarm) => html`<${AlarmNote} key=${`${alarm.name}/${alarm.first}`} id=${detail.source.id}
        alarm=${alarm} />`)}
    </section>`;
  }

  function AlarmNote({ id, alarm }) {
    const [open, setOpen] = useState(false);
    const state = useData(open ? ["alarms", id, String(alarm.first)] : null);
    const step = address(["source", id, "debates"], { part: `step_${String(alarm.first).padStart(6, "0")}` });
    const told = state.data?.alarms.find((one) => one.name === alarm.name);
    return html`<details onToggle=${(event) => setOpen(event.target.open)}>
      <summary>⚑ <b><${Name} text=${alarm.name} />
        </b> <span class="soft">after ${alarm.first === alarm.last ? `step ${alarm.first}` : `steps ${alarm.first} to ${alarm.last}`}</span></summary>
      ${open && !state.data && html`<${Waiting} state=${state} what="the debates of the step" />`}
      ${state.data && !told?.seen &&
        html`<p class="soft">What set it off can't be computed again here. <a href=${step}>The debates of the step</a></p>`}
      ${told?.seen && html`<p><${Name} text=${told.seen} />. <${Name} text=${told.advice ?? ""} /></p>`}
      ${told?.debates.length > 0 && html`<p>Set off by ${told.debates.map((one) => html`<a key=${one.id}
        href=${debateAddress(id, one)}><${Name} text=${one.id} /></a> `)}</p>`}
    </details>`;
  }

  function Settings({ detail, query }) {
    const only = query.all !== "1" && detail.settings.some((one) => one.differs);
    const shown = detail.settings.filter((one) => !only || one.differs);
    const sections = [...new Set(shown.map((one) => one.section))];
    const say = (value) => (value === null ? "unset" : typeof value === "string" ? value : JSON.stringify(value));
    return html`<section><h2>Settings</h2>
      ${detail.preset ? html`<p>Nearest preset: <b><${Name} text=${detail.preset} />
        </b>; ${many(detail.settings.filter((one) => one.differs).length, "setting differs", "settings differ")} from it.
        <label class="inline"><input type="checkbox" checked=${!only}
          onChange=${(event) => setQuery({ all: event.target.checked ? "1" : "" })} /> show all ${detail.settings.length}</label></p>`
        : html`<p class="soft">The settings can't be read.</p>`}
      ${detail.rules.note && html`<p class="note"><${Name} text=${detail.rules.note} /></p>`}
      ${shown.length > 0 && html`<div class="scroll" tabindex="0"><table class="settings"><thead><tr><th scope="col">setting</th>
        <th scope="col">here</th><th scope="col">preset</th></tr></thead>
        ${sections.map((section) => html`<tbody key=${section}><tr><th colspan="3" class="section" scope="rowgroup">
          ${words(section || "general")}</th></tr>
          ${shown.filter((one) => one.section === section).map((one) => html`<tr key=${one.name}
            class=${one.differs ? "differs" : ""}><th scope="row"><${Name} text=${one.name} /></th>
            <td><${Name} text=${say(one.value)} /></td><td class="soft">${one.differs ? html`<${Name}
              text=${say(one.preset)} />` : "the same"}</td></tr>`)}</tbody>`)}
      </table></div>`}
      <h2>Facts</h2><dl class="facts">${detail.facts.map(([name, value]) => html`<div key=${name}><dt><${Name}
        text=${name} /></dt><dd><${Name} text=${value} /></dd></div>`)}</dl>
    </section>`;
  }

  Object.assign(pg, { Source, SourceHead });
}
