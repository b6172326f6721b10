// The same question at different steps: a slider, and the words in which two debates differ.

"use strict";
{
  const { Grade, Name, RightGrid, Text, Waiting, debateAddress, has, html, loadQuestion } = pg;
  const { setQuery, sourceAddress, useData, useKeys, visible, wordDiff } = pg;

  const keyOf = (row) => `${row.part}/${row.index}`;
  function nameOf({ part, step }) {
    if (step === null || step === undefined) return visible(part);
    return part.startsWith("eval") ? `evaluation after step ${step}` : `step ${step}`;
  }

  function Question({ id, question, query }) {
    const state = useData(["question", id], { question }, loadQuestion);
    const rows = (state.data?.rows ?? []).filter((row) => row.index !== null && !row.problem && has(["debate", id, row.part, row.index]));
    const find = (key, other) => Math.max(0, rows.findIndex((row) => keyOf(row) === key) + (rows.some((row) => keyOf(row) === key) ? 0 : other + 1));
    const [a, b] = [find(query.a, 0), find(query.b, rows.length - 1)];
    const move = (by) => rows[b + by] && setQuery({ b: keyOf(rows[b + by]) });
    useKeys({
      j: { does: "a step later", run: () => move(1) },
      k: { does: "a step earlier", run: () => move(-1) },
      ArrowRight: { does: "a step later", run: () => move(1) },
      ArrowLeft: { does: "a step earlier", run: () => move(-1) },
    });
    if (!state.data) return html`<main><${Waiting} state=${state} what="debates on this question" /></main>`;
    if (!rows.length) return html`<main><p class="empty">There is no debate on this question.</p></main>`;
    const slider = (side, at) => html`<label class="slider"><span>${side === "a" ? "Before" : "After"}: <b>
      ${nameOf(rows[at])}</b></span>
      <input type="range" min="0" max=${rows.length - 1} value=${at} aria-label=${side === "a" ? "before" : "after"}
        onInput=${(event) => setQuery({ [side]: keyOf(rows[event.target.value]) })} /></label>`;
    return html`<main>
      <header class="head"><p class="facts-line"><a href=${sourceAddress(id, "debates")}>↑ debates</a><span><${Name}
        text=${question} /></span><span>${rows.length} debates</span></p>
        <h1 class="question"><${Text} text=${state.data.question} /></h1>
        ${state.data.answer !== null && html`<p class="reference">Right answer <b><${Text} text=${state.data.answer} /></b>
          </p>`}</header>
      <ol class="strip">${rows.map((row, at) => html`<li key=${keyOf(row)} class=${at === a ? "a" : at === b ? "b" : ""}>
        <button onClick=${() => setQuery({ b: keyOf(row) })} title=${nameOf(row)} aria-label=${`after: ${nameOf(row)}`}>
          <small>${row.step ?? at}</small><${RightGrid} right=${row.right.slice(-1)} /></button></li>`)}</ol>
      <div class="controls">${slider("a", a)}${slider("b", b)}</div>
      ${a === b ? html`<p class="empty">
        ${rows.length === 1 ? "It was debated only once." : "Both are the same debate."}</p>` : null}
      <${Two} id=${id} a=${rows[a]} b=${rows[b]} round=${query.round} />
    </main>`;
  }

  function Two({ id, a, b, round }) {
    const before = useData(["debate", id, a.part, String(a.index)]);
    const after = useData(["debate", id, b.part, String(b.index)]);
    if (!before.data) return html`<${Waiting} state=${before} what=${nameOf(a)} />`;
    if (!after.data) return html`<${Waiting} state=${after} what=${nameOf(b)} />`;
    const rounds = Math.max(before.data.row.rounds, after.data.row.rounds);
    const shown = Math.min(rounds - 1, round === undefined || round === "" ? rounds - 1 : Number(round) || 0);
    const turnOf = (debate, agent) => debate.turns.findLast((turn) => turn.agent === agent && turn.round <= shown);
    const agents = Math.max(before.data.seats.length, after.data.seats.length);
    return html`<p class="sides-line">Words only in <a href=${debateAddress(id, a)}><del>${nameOf(a)}</del>
      </a>, words only in <a href=${debateAddress(id, b)}><ins>${nameOf(b)}</ins></a>
        ${rounds > 1 && html` <label>round <select value=${String(shown)}
          onChange=${(event) => setQuery({ round: event.target.value })}>
            ${Array.from({ length: rounds }, (_, at) => html`<option key=${at} value=${String(at)}>
              ${at + 1}</option>`)}</select></label>`}</p>
      <div class="grid" style=${{ "--agents": agents }}>${Array.from({ length: agents }, (_, agent) => html`<${Changed}
        key=${agent} agent=${agent} before=${turnOf(before.data, agent)} after=${turnOf(after.data, agent)} />`)}</div>`;
  }

  function Changed({ agent, before, after }) {
    const pieces = pg.useMemo(() => wordDiff(before?.text ?? "", after?.text ?? ""), [before?.text, after?.text]);
    return html`<article class=${`turn seat${agent % 6}`}><header><b class="who">Agent ${agent}</b>
      ${before?.grade && html`<${Grade} right=${before.grade.right} words=${false} />`} → ${after?.grade && html`<${Grade}
        right=${after.grade.right} />`}</header>
      <div class="raw diff"><bdi class="text">${pieces.map(({ kind, text }, index) =>
        kind === "same" ? html`<span key=${index}>${visible(text)}</span>` : kind === "gone" ? html`<del key=${index}>
          ${visible(text)}</del>` : html`<ins key=${index}>${visible(text)}</ins>`)}</bdi></div></article>`;
  }

  Object.assign(pg, { Question });
}
