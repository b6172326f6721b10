// One debate: who ended where, the turns as agents by rounds, and the votes between them.

"use strict";
{
  const { Choice, CreditLegend, Field, Grade, Name, Reward, Text, Turn, VoteDialog, VoteMatrix, Waiting, address, count, debateAddress, go, has, html } = pg;
  const { largestCredit, many, percent, setQuery, signed, sourceAddress, tone, useData, useKeys } = pg;

  const VIEWS = [
    ["", "Sections", "the sections of each reply"],
    ["raw", "Raw", "the exact reply"],
    ["credit", "Credit", "what each word was credited with"],
  ];

  function Debate({ id, part, index, query }) {
    const state = useData(["debate", id, part, index]);
    const { data } = state;
    const thereIs = (place) => place !== null && place !== undefined && has(["debate", id, part, place]);
    const beside = (place) => {
      if (thereIs(place)) go(address(["source", id, "debate", part, place], { ...query, turn: "", vote: "" }));
    };
    const turnBy = (by) => {
      const last = data.turns.length - 1;
      const at = query.turn === undefined ? (by > 0 ? -1 : last + 1) : Number(query.turn);
      setQuery({ turn: Math.min(last, Math.max(0, at + by)) });
    };
    useKeys({
      "/": { does: "find in this debate", run: () => document.getElementById("find").focus() },
      j: { does: "next turn", run: () => data && turnBy(1) },
      k: { does: "turn before", run: () => data && turnBy(-1) },
      ArrowRight: { does: "next debate of the file", run: () => beside(data?.next) },
      ArrowLeft: { does: "debate before", run: () => beside(data?.previous) },
      s: { does: "sections", run: () => setQuery({ view: "" }) },
      r: { does: "raw replies", run: () => setQuery({ view: "raw" }) },
      c: { does: "credit over the words", run: () => setQuery({ view: "credit" }) },
      u: { does: "up to the table", run: () => go(backTo(id, part, query)) },
    });
    if (!data) return html`<main><${Waiting} state=${state} what="the debate" /></main>`;
    return html`<main class="debate-page">
      <${Head} ...${{ id, part, query, data, beside, thereIs }} />
      <${Controls} data=${data} query=${query} />
      <${Rounds} data=${data} query=${query} />
      <${Counts} data=${data} />
      ${query.vote && html`<${VoteDialog} key=${query.vote} debate=${data} name=${query.vote}
        onClose=${() => setQuery({ vote: "" })} />`}
    </main>`;
  }

  const backTo = (id, part, { flags, q, sort, from }) => address(["source", id, "debates"], { part: from === "all" ? "" : part, flags, q, sort });

  function Head({ id, part, query, data, beside, thereIs }) {
    const { question, row } = data;
    return html`<header class="head">
      <p class="facts-line">
        <a href=${backTo(id, part, query)}>↑ ${row.step === null || row.step === undefined ? part : `step ${row.step}`}</a>
        <span><${Name} text=${row.id} /></span><span><${Name} text=${data.protocol.name} />, ${data.protocol.size}</span>
        ${row.step !== null && row.step !== undefined &&
          html`<a href=${address(["source", id, "question", question.id])}>Across steps</a>`}
        <span class="beside"><button disabled=${!thereIs(data.previous)} onClick=${() => beside(data.previous)}
          aria-label="debate before">←</button>
        <button disabled=${!thereIs(data.next)} onClick=${() => beside(data.next)} aria-label="next debate">→</button></span>
          </p>
      <div class="question-and-agents"><div>
      <h1 class="question"><${Text} text=${question.text} find=${query.find} /></h1>
      ${question.answer !== null && html`<p class="reference">Right answer <b><${Text} text=${question.answer} /></b></p>`}
      <${Outcome} data=${data} />
      </div><${Agents} data=${data} /></div>
    </header>`;
  }

  function Outcome({ data }) {
    const { ending, row } = data;
    const how = { votes: "by votes", answers: "by how often its answer was given" }[ending.decided_by];
    const winner = ending.agents.find((one) => one.agent === ending.winner);
    const several = ending.winners.length > 1 ? `: Agents ${ending.winners.join(", ")} are equally good` : "";
    if (!winner) return html`<p class="outcome">No winner${several}.</p>`;
    return html`<p class="outcome"><b>Agent ${ending.winner}</b> wins ${how}${winner.answer !== null &&
      html` with <b class="answer"><${Name} text=${winner.answer} /></b>`} ${row.winner_right !== null && html`<${Grade}
        right=${row.winner_right} />`}</p>`;
  }

  // How every agent ended, with its reward where rewards are by agent.
  function Agents({ data }) {
    const byAgent = data.streams.filter((stream) => stream.unit === "agent");
    const voted = data.ending.agents.some((one) => one.won + one.tied + one.lost > 0);
    const right = ({ agent, round }) => data.turns.find((turn) => turn.agent === agent && turn.round === round)?.grade?.right ?? null;
    return html`<div class="scroll" tabindex="0"><table class="agents numbers"><thead><tr><th scope="col">Agent</th><th scope="col"
      class="left">Final answer</th>
      ${voted && html`<th scope="col">won – tied – lost</th><th scope="col">win rate</th>`}
      ${byAgent.map((stream) => html`<th key=${stream.name} scope="col">${stream.name}</th>
        <th scope="col">advantage</th>`)}</tr></thead>
      <tbody>${data.ending.agents.map((one) => html`<tr key=${one.agent}
        class=${`seat${one.agent % 6} ${one.agent === data.ending.winner ? "winner" : ""}`}>
        <th scope="row"><span class="dot"></span><${Name} text=${data.seats[one.agent]?.name ?? `Agent ${one.agent}`} />
          ${data.seats[one.agent]?.by && html` <small>by <${Name} text=${data.seats[one.agent].by} /></small>`}</th>
        <td class="left">${right(one) !== null && html`<${Grade} right=${right(one)} words=${false} /> `}
          <span class="answer">${one.answer === null ? html`<span class="none">${one.round === null ? "none" : "–"}</span>`
            : html`<${Name} text=${one.answer} />`}</span></td>
        ${voted && html`<td>${count(one.won)} – ${count(one.tied)} – ${count(one.lost)}</td><td>
          ${percent(one.win_rate)}</td>`}
        ${byAgent.map((stream) => html`<td key=${stream.name} class="reward" data-agent-stream=${stream.name}
          data-value=${String(stream.values[one.agent] ?? "none")}
            data-advantage=${String(stream.advantages[one.agent] ?? "none")}><b class=${tone(stream.values[one.agent])}>
              ${signed(stream.values[one.agent])}</b></td><td>${signed(stream.advantages[one.agent])}</td>`)}
      </tr>`)}</tbody></table>
      ${byAgent.length > 0 && html`<details class="rewards"><summary>The votes behind ${byAgent.map((stream) => stream.name).join(" and ")}</summary>
        ${byAgent.flatMap((stream) => data.seats.map(({ agent }) => html`<${Reward} key=${`${stream.name}/${agent}`} debate=${data}
          stream=${{ ...stream, at: agent }} label=${`Agent ${agent}: ${stream.name}`} note=${unreadable(data, agent)}
          effect=${(vote) => (vote.op === "=" ? "a tie" : vote.a === agent ? "for it" : "against it")} />`))}</details>`}</div>`;
  }

  // What bad form took from the score of an agent.
  function unreadable({ turns }, agent) {
    const lost = turns.filter((turn) => turn.agent === agent && turn.step_reward < 0).map((turn) => turn.step_reward);
    const total = lost.reduce((sum, reward) => sum + reward, 0);
    return lost.length > 0 && `${signed(total, 0)} for ${many(lost.length, "unreadable reply", "unreadable replies")}.`;
  }

  function Controls({ data, query }) {
    const streams = [["", "sum"], ...data.streams.map((stream) => [stream.name, stream.name])];
    const kept = data.turns.some((turn) => turn.tokens);
    const place = data.streams.findIndex((stream) => stream.name === query.stream);
    return html`<div class="controls sticky">
      <${Choice} label="Show" value=${query.view ?? ""} options=${VIEWS} onChange=${(view) => setQuery({ view })} />
      ${query.view === "credit" && html`<${Choice} label="of" value=${query.stream ?? ""} options=${streams}
        onChange=${(stream) => setQuery({ stream })} />
        ${kept && html`<label><input type="checkbox" checked=${query.tokens === "1"}
          onChange=${(event) => setQuery({ tokens: event.target.checked ? "1" : "" })} /> how likely each token was</label>`}`}
      <${Field} id="find" label="Find" value=${query.find} placeholder="in this debate"
        onChange=${(find) => setQuery({ find })} />
      ${query.view === "credit" && html`<${CreditLegend} largest=${largestCredit(data.turns, place)}
        tokens=${kept && query.tokens === "1"} />`}
    </div>`;
  }

  function Rounds({ data, query }) {
    const rounds = [...new Set(data.turns.map((turn) => turn.round))].sort((a, b) => a - b);
    const stream = data.streams.findIndex((one) => one.name === query.stream);
    const largest = query.view === "credit" ? largestCredit(data.turns, stream) : 0;
    const common = { debate: data, view: query.view ?? "", stream, largest, find: query.find };
    return html`${rounds.map((round) => html`<section key=${round} class="round"><h2>Round ${round + 1}</h2>
      <div class="grid" style=${{ "--agents": data.seats.length }}>
        ${data.turns.filter((turn) => turn.round === round).map((turn) => html`<${Turn} key=${turn.turn} ...${common}
          turn=${turn} target=${query.turn === String(turn.turn)} />`)}
      </div>
      <${VoteMatrix} debate=${data} round=${round} />
    </section>`)}
    ${data.verdict && html`<section class="round"><h2>Verdict</h2><${Turn} ...${common}
      turn=${{ ...data.verdict, turn: data.turns.length }} target=${query.turn === String(data.turns.length)} />
        </section>`}`;
  }

  const COUNTS = {
    self_votes: "votes about their own author",
    malformed: "malformed votes",
    repeated: "repeated",
    contradictory: "contradictory",
    missing: "turns without a vote that was due",
    parse_errors: "unreadable replies",
    unseen: "votes about the unseen",
  };

  function Counts({ data }) {
    const bad = Object.entries(data.counts).filter(([, n]) => n > 0).map(([name, n]) => `${count(n)} ${COUNTS[name] ?? name}`);
    return html`<p class="note">${bad.length ? `${bad.join(", ")}. ` : "No bad votes. "}${data.rules.note && html`<${Name}
      text=${data.rules.note} />`}
      <a href=${sourceAddress(readId(), "settings")}>Rules of the rewards</a></p>`;
  }

  const readId = () => pg.readHash(location.hash).path[1];

  Object.assign(pg, { Debate, debateAddress });
}
