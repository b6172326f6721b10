// The result of an evaluation, and two of them question by question.

"use strict";
{
  const { Choice, Field, Grade, Interval, Name, RightGrid, SourceName, Text, Waiting } = pg;
  const { count, debateAddress, has, html, live, many, percent, setQuery, signed, sourceAddress, useData, useKeys } = pg;

  // A difference of shares with its interval, in points.
  function points([value, low, high]) {
    const say = (share) => signed(share * 100, 1);
    return html`${say(value)} <span class="soft">(${say(low)} to ${say(high)})</span>`;
  }

  function EvalResult({ detail }) {
    const { result } = detail;
    if (!result) return html`<p class="empty">It is not finished: there is no result yet.</p>`;
    const reference = result.rows.find((row) => row.name === result.reference)?.value ?? null;
    return html`<section><h2>Result</h2><div class="scroll" tabindex="0"><table class="numbers">
      <thead><tr><td></td><th scope="col">right</th><th scope="col">95 % interval</th><td></td>
        <th scope="col">against equal cost</th><th scope="col">tokens</th></tr></thead>
      <tbody>${result.rows.map((row) => html`<tr key=${row.name}><th scope="row"><${Name} text=${row.label} />
        </th><td><b>${percent(row.value, 1)}</b></td>
        <td class="soft">${percent(row.low)} – ${percent(row.high)}</td><td><${Interval} ...${row} reference=${reference} />
          </td>
        <td>${row.difference ?
          points(row.difference) : "–"}</td>
        <td>${count(row.tokens)}</td></tr>`)}</tbody></table></div>
      ${result.shares.length > 0 && html`<h2>Of all debates</h2><div class="scroll" tabindex="0"><table class="numbers"><tbody>
        ${result.shares.map((row) => html`<tr key=${row.name}><th scope="row"><${Name} text=${row.label} /></th>
          <td><b>${percent(row.value, 1)}</b></td>
          <td class="soft">${percent(row.low)} – ${percent(row.high)}</td><td><${Interval} ...${row} /></td>
            <td class="soft">of ${count(row.of)}</td></tr>`)}</tbody></table></div>`}
      ${Object.keys(result.dropped ?? {}).length > 0 && html`<details><summary>
        ${many(Object.keys(result.dropped).length, "question was", "questions were")} dropped</summary>
        <ul>${Object.entries(result.dropped).map(([id, why]) => html`<li key=${id}><b><${Name} text=${id} /></b>: <${Name}
          text=${why} /></li>`)}</ul></details>`}
    </section>`;
  }

  const CHANGES = [["", "all"], ["worse", "worse"], ["better", "better"], ["other", "another answer"], ["same", "the same"]];
  const SIGNS = { worse: "▼ worse", better: "▲ better", other: "◆ another answer", same: "= the same" };

  // Two sources question by question, those that changed first.
  function Compare({ a, b, query }) {
    const state = useData(["compare", a, b], { part_a: query.part_a, part_b: query.part_b });
    const move = (by) => {
      const links = [...document.querySelectorAll("a.open")];
      links[Math.min(links.length - 1, Math.max(0, links.indexOf(document.activeElement) + by))]?.focus();
    };
    useKeys({
      j: { does: "next question", run: () => move(1) },
      k: { does: "question before", run: () => move(-1) },
      "/": { does: "search the questions", run: () => document.getElementById("find").focus() },
    });
    if (!state.data) return html`<main><${Waiting} state=${state} what="both evaluations" /></main>`;
    const { data } = state;
    const find = (query.find ?? "").toLowerCase();
    const changed = data.questions.filter((one) => !query.change || one.change === query.change);
    const fits = changed.filter((one) => one.question.toLowerCase().includes(find));
    const shown = fits.slice(0, query.all === "1" ? undefined : 200);
    const part = (side, parts, value) => live && parts.length > 1 && html`<label>part <select value=${value}
      onChange=${(event) => setQuery({ [`part_${side}`]: event.target.value })}>
      ${parts.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>`;
    return html`<main>
      <h1>Question by question</h1>
      <div class="sides"><p><span class="side">A</span> <a href=${sourceAddress(a)}><${SourceName} source=${data.a} />
        </a> ${part("a", data.parts_a, data.part_a)}</p>
        <p><span class="side">B</span> <a href=${sourceAddress(b)}><${SourceName} source=${data.b} />
          </a> ${part("b", data.parts_b, data.part_b)}</p></div>
      <p>${many(data.counts.shared, "question")} in both: <b>${count(data.counts.better)}</b> better in B, <b>
        ${count(data.counts.worse)}</b> worse, <b>${count(data.counts.same)}</b> the same.
        ${data.counts.only_a + data.counts.only_b > 0 && ` Only in A: ${count(data.counts.only_a)}; only in B: ${count(data.counts.only_b)}.`}</p>
      <${Summary} rows=${data.summary} />
      <div class="controls"><${Choice} label="Show" value=${query.change ?? ""} options=${CHANGES}
        onChange=${(change) => setQuery({ change })} />
        <${Field} id="find" label="Search" value=${query.find} placeholder="in the questions"
          onChange=${(value) => setQuery({ find: value })} /></div>
      <div class="scroll"><table class="list"><thead><tr><th scope="col">Change</th><th scope="col">Question</th>
        <th scope="col">A</th><th scope="col">B</th></tr></thead>
        <tbody>${shown.map((one) => html`<tr key=${one.question_id} class=${`change-${one.change}`}>
          <td><span class=${`change ${one.change}`}>${SIGNS[one.change] ?? one.change}</span></td>
          <th scope="row" class="question-cell"><${Text} text=${one.question} find=${query.find} /></th>
          <td data-label="A"><${Side} id=${a} row=${one.a} first=${true} /></td><td data-label="B"><${Side} id=${b}
            row=${one.b} /></td></tr>`)}</tbody></table></div>
      ${!fits.length && html`<p class="empty">No question fits.</p>`}
      ${shown.length < fits.length &&
        html`<button onClick=${() => setQuery({ all: "1" })}>Show all ${count(fits.length)}</button>`}
    </main>`;
  }

  function Side({ id, row, first = false }) {
    const answer = row.winner === null ? (row.agents > 1 ? "no winner" : row.answers[0]) : row.answers[row.winner];
    const said = html`<${Grade} right=${row.winner_right} words=${false} /> <${Name} text=${answer ?? "no answer"} />`;
    return html`${has(["debate", id, row.part, row.index]) ? html`<a class=${first ? "open side-link" : "side-link"}
      href=${debateAddress(id, row)}>${said}</a>` : html`<span class="side-link">${said}</span>`}
      <${RightGrid} right=${row.right} />`;
  }

  function Summary({ rows }) {
    if (!rows.length) return null;
    const main = rows.find((row) => row.name === "debate/winner") ?? rows[0];
    return html`<details class="summary"><summary><${Name}
      text=${main.label} />: ${percent(main.first[0], 1)} → <b>
        ${percent(main.second[0], 1)}</b>, ${points(main.difference)} <span class="soft">and ${many(rows.length - 1, "other row")}</span></summary>
      <div class="scroll" tabindex="0"><table class="numbers"><thead><tr><td></td><th scope="col">A</th><th scope="col">B</th>
        <th scope="col">change in points</th><th scope="col">better</th><th scope="col">worse</th></tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.name}><th scope="row"><${Name} text=${row.label} /></th><td>
        ${percent(row.first[0], 1)}</td><td><b>${percent(row.second[0], 1)}</b></td>
        <td>${points(row.difference)}</td><td>${count(row.better)}</td><td>${count(row.worse)}</td></tr>`)}</tbody></table>
          </div></details>`;
  }

  Object.assign(pg, { EvalResult, Compare });
}
