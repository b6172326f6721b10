// The table of debates of a source: filters, full-text search, a slider over the steps.

"use strict";
{
  const { FLAGS, Failed, Field, Grade, Name, PAGE, Pages, RightGrid, SortHead, SourceHead, Waiting, count, debateAddress, has, html, loadRows } = pg;
  const { marked, percent, setQuery, useData, useKeys, visible } = pg;

  function Debates({ id, query }) {
    const source = useData(["source", id]);
    const wanted = { part: query.part, flags: query.flags, q: query.q, sort: query.sort, page: query.page ?? 0 };
    const state = useData(["debates", id], wanted, loadRows);
    const parts = source.data?.parts ?? [];
    const step = (by) => {
      const at = parts.findIndex((part) => part.name === query.part);
      const next = parts[at < 0 ? (by > 0 ? 0 : parts.length - 1) : at + by];
      if (next) setQuery({ part: next.name, page: "" });
    };
    useKeys({
      "/": { does: "search in what was said", run: () => document.getElementById("find").focus() },
      j: { does: "next debate", run: () => move(1) },
      k: { does: "debate before", run: () => move(-1) },
      ArrowRight: { does: "next step or file", run: () => step(1) },
      ArrowLeft: { does: "step or file before", run: () => step(-1) },
    });
    if (!source.data) return html`<main><${Waiting} state=${source} what="the run" /></main>`;
    const flags = (query.flags ?? "").split(",").filter(Boolean);
    const toggle = (flag) => setQuery({ flags: (flags.includes(flag) ? flags.filter((one) => one !== flag) : [...flags, flag]).join(","), page: "" });
    return html`<main>
      <${SourceHead} detail=${source.data} tab="debates" />
      <div class="controls">
        <${PartChoice} parts=${parts} value=${query.part} />
        <${Field} id="find" label="Search" value=${query.q} placeholder="in questions and replies"
          onChange=${(q) => setQuery({ q, page: "" })} />
      </div>
      <div class="flags" role="group" aria-label="only debates with">
        ${FLAGS.filter(([flag]) => flags.includes(flag) || state.data?.flags[flag]).map(([flag, name, title]) => html`
          <button key=${flag} data-flag=${flag} class="flag" title=${title}
          aria-pressed=${String(flags.includes(flag))} onClick=${() => toggle(flag)}>${name} <b>
            ${count(state.data?.flags[flag] ?? 0)}</b></button>`)}
        ${(flags.length > 0 || query.q) && html`<button class="plain"
          onClick=${() => setQuery({ flags: "", q: "", page: "" })}>clear</button>`}
      </div>
      ${state.error && html`<${Failed} error=${state.error} />`}
      ${!state.data ? !state.error && html`<p class="loading">Reading debates…</p>` : html`<${Table} id=${id}
        data=${state.data} query=${query} parts=${parts} />`}
    </main>`;
  }

  // A list of all files, and a slider where they are steps.
  function PartChoice({ parts, value }) {
    const steps = parts.filter((part) => part.kind === "step");
    const at = steps.findIndex((part) => part.name === value);
    const choose = (part) => setQuery({ part, page: "" });
    return html`<label class="field"><span>From</span><select value=${value ?? ""}
      onChange=${(event) => choose(event.target.value)}>
        <option value="">all ${parts.length === 1 ? "debates" : `${parts.length} files`}</option>
        ${parts.map((part) => html`<option key=${part.name} value=${part.name}>
          ${visible(part.kind === "step" ? `step ${part.step}` : part.name)} (${part.debates})</option>`)}
      </select></label>
      ${steps.length > 1 && html`<label class="slider"><span>Step ${at < 0 ? "any" : steps[at].step}</span>
        <input type="range" min="0" max=${steps.length - 1} value=${at < 0 ? 0 : at} aria-label="step"
          onInput=${(event) => choose(steps[event.target.value].name)} /></label>`}`;
  }

  function move(by) {
    const links = [...document.querySelectorAll("a.open")];
    const at = links.indexOf(document.activeElement);
    links[at < 0 ? 0 : Math.min(links.length - 1, Math.max(0, at + by))]?.focus();
  }

  function Table({ id, data, query, parts }) {
    const sort = { by: query.sort, onSort: (by) => setQuery({ sort: by, page: "" }) };
    const many = !query.part && parts.length > 1;
    const page = Number(query.page) || 0;
    const length = data.rows.some((row) => row.sampled_tokens !== null) ? "sampled_tokens" : "chars";
    if (!data.rows.length) return html`<p class="empty">
      ${data.total ? `None of ${count(data.total)} debates fits.` : "There are no debates yet."}</p>`;
    return html`<p class="found" role="status">
      ${count(data.matched)} of ${count(data.total)} debates${data.indexed < 1 ? `; ${percent(data.indexed)} of the files read so far` : ""}</p>
      <div class="scroll"><table class="list debates"><thead><tr>
        ${many && html`<${SortHead} ...${sort} column="part">From<//>`}
        <${SortHead} ...${sort} column="question">Question<//>
        <${SortHead} ...${sort} column="rounds" title="protocol, agents and rounds">Debate<//>
        <${SortHead} ...${sort} column="winner_right" title="the answer that won">Winner<//>
        <${SortHead} ...${sort} column="right" title="a line for each round, a place for each agent">Right<//>
        <${SortHead} ...${sort} column="flips" title="answers that changed from right to wrong, and back"
          number=${true}>Changed<//>
        <${SortHead} ...${sort} column="votes" title="valid votes" number=${true}>Votes<//>
        <${SortHead} ...${sort} column="unreadable" title="replies that can't be read" number=${true}>Unread.<//>
        <${SortHead} ...${sort} column=${length} title="of all replies" number=${true}>Length<//>
        <th scope="col">Notes</th>
      </tr></thead><tbody>
        ${data.rows.map((row, place) => html`<${Row}
          key=${`${row.part}/${row.index ?? row.id}/${place}`} ...${{ id, row, many, query }} />`)}
      </tbody></table></div>
      <${Pages} page=${page} size=${PAGE} total=${data.matched}
        onPage=${(next) => setQuery({ page: next || "" }, { push: true })} />`;
  }

  function Row({ id, row, many, query }) {
    const there = row.index !== null && !row.problem && !row.dropped;
    const open = there && has(["debate", id, row.part, row.index]);
    const question = html`<span class="question-text">${marked(visible(row.question || row.id || "–"), query.q)}</span>`;
    const winner = row.winner === null || row.winner === undefined ? null : row.answers?.[row.winner];
    const context = { flags: query.flags, q: query.q, sort: query.sort, from: query.part ? "" : "all", find: query.q };
    return html`<tr class=${open ? "" : "closed"}>
      ${many && html`<td><${Name} text=${row.step === null || row.step === undefined ? row.part : `step ${row.step}`} />
        </td>`}
      <th scope="row">${open ? html`<a class="open"
        href=${debateAddress(id, row, { ...context, turn: row.snippet?.turn ?? "" })}>${question}</a>` : question}
        ${row.snippet && html`<small class="snippet">…${visible(row.snippet.before)}<mark>${visible(row.snippet.hit)}</mark>
          ${visible(row.snippet.after)}… <span class="soft">
            ${saidIn(row)}</span></small>`}
        ${there && !open && html`<small>not part of this export</small>`}
        ${(row.problem || row.dropped) && html`<small class="bad"><${Name} text=${row.problem ?? row.dropped} />
          </small>`}</th>
      <td class="soft">${row.protocol && html`<${Name} text=${row.protocol} /> <span class="shape">${row.agents} × ${row.rounds}</span>`}</td>
      <td>${winner === null || winner === undefined ? html`<span class="none">
        ${row.decided_by === "nothing" || row.winner === null ? "none" : "–"}</span>` : html`<${Grade}
          right=${row.winner_right} words=${false} /> <span class="answer"><${Name} text=${winner} />
            </span> <small class="soft">Agent ${row.winner}</small>`}</td>
      <td>${row.right && html`<${RightGrid} right=${row.right} />`}</td>
      <td class="number" data-label="changed">${flips(row)}</td>
      <td class="number" data-label="votes">${count(row.votes)}</td>
      <td class="number" data-label="unreadable">${row.unreadable ? html`<span class="bad">${row.unreadable}</span>`
        : html`<span class="none">0</span>`}</td>
      <td class="number" data-label="length"><span class="shape">${lengthOf(row)}</span></td>
      <td class="notes">${FLAGS.filter(([flag]) => row.flags.includes(flag)).map(
        ([flag, name, title]) => html`<span key=${flag} class=${`note-flag ${flag}`} title=${title}>
          ${name}${row[flag] > 1 && ` × ${row[flag]}`}</span> `,
      )}</td>
    </tr>`;
  }

  function lengthOf({ protocol, sampled_tokens: tokens, chars }) {
    if (!protocol) return "–"; // dropped, or damaged
    return tokens === null ? `${count(chars)} characters` : `${count(tokens)} tokens`;
  }

  function saidIn({ snippet, turns }) {
    if (snippet.turn === null) return "in the question";
    return snippet.turn >= turns ? "by the judge" : `turn ${snippet.turn}`;
  }

  function flips(row) {
    if (!row.right_to_wrong && !row.wrong_to_right) return html`<span class="none">–</span>`;
    return html`${row.wrong_to_right > 0 && html`<span class="grade right"
      aria-label=${`${row.wrong_to_right} to right`}>↗${row.wrong_to_right}</span>`} ${row.right_to_wrong > 0 &&
        html`<span class="grade wrong" aria-label=${`${row.right_to_wrong} to wrong`}>↘${row.right_to_wrong}</span>`}`;
  }

  Object.assign(pg, { Debates });
}
