// The page: what the address names, the bar above it, and the keys that hold everywhere.

"use strict";
{
  const { Compare, Debate, Debates, Dialog, Failed, Name, Question, Runs, Source, go, html, keysNow, listenForKeys, live, render, useData } = pg;
  const { framed, goQuietly, shortName, sourceAddress, useEffect, useErrorBoundary, useKeys, useRoute, useState, visible, watchChanges } = pg;

  function Page({ path, query }) {
    const [kind, id, what, ...rest] = path;
    if (!kind) return html`<${Runs} query=${query} />`;
    if (kind === "source" && id && (!what || what === "settings")) return html`<${Source} key=${id} id=${id}
      tab=${what ?? ""} query=${query} />`;
    if (kind === "source" && what === "debates") return html`<${Debates} key=${id} id=${id} query=${query} />`;
    if (kind === "source" && what === "debate" && rest.length === 2) return html`<${Debate} id=${id} part=${rest[0]}
      index=${rest[1]} query=${query} />`;
    if (kind === "source" && what === "question" && rest.length === 1) return html`<${Question} key=${rest[0]} id=${id}
      question=${rest[0]} query=${query} />`;
    if (kind === "compare" && what) return html`<${Compare} key=${`${id}/${what}`} a=${id} b=${what} query=${query} />`;
    return html`<main><h1>Nothing here</h1><${Failed} error="There is no such page." /><p><a href="#/">All runs and evaluations</a></p></main>`;
  }

  const TITLES = { debates: "debates", debate: "debate", question: "across steps", settings: "settings" };

  function App() {
    const { path, query } = useRoute();
    const [help, setHelp] = useState(false);
    const [error, reset] = useErrorBoundary();
    const sources = useData(["sources"]);
    const source = path[0] === "source" ? sources.data?.sources.find((one) => one.id === path[1]) : undefined;
    const shown = source?.kind === "file" && path.length === 2 ? [...path, "debates"] : path; // a transcript is its debates
    const where = path.join("/");
    useEffect(() => {
      reset();
      if (!query.turn) scrollTo(0, 0);
    }, [where]);
    useEffect(() => {
      document.title = [source && visible(source.name), path[0] === "compare" ? "compare" : TITLES[path[2]], "peergrad"].filter(Boolean).join(" · ");
    }, [where, source?.name]);
    useKeys({
      "?": { does: "this help", run: () => setHelp((open) => !open) },
      g: { does: "all runs", run: () => go("#/") },
      Escape: { does: "leave a field", run: () => document.activeElement?.blur() },
    });
    return html`
      <a class="skip" href="#content"
        onClick=${toContent}>To the content</a>
      <nav class="top" aria-label="where">
        <a class="mark" href="#/">peergrad</a>
        ${source && html`<span class="crumb" aria-hidden="true">/</span><a href=${sourceAddress(source.id)}><${Name}
          text=${shortName(source)} /></a>`}
        ${source && TITLES[path[2]] && html`<span class="crumb" aria-hidden="true">/</span><span>${TITLES[path[2]]}</span>`}
        <span class="spread"></span>
        <span class="alive" role="status">${live ? html`<span class="on">live</span>
          <span class="off">not connected</span>` : "export"}</span>
        <button class="help" onClick=${() => setHelp(true)} aria-label="keys and help">?</button>
      </nav>
      <div id="content" tabindex="-1">${error ? html`<main><${Failed} error=${`This can't be shown: ${error.message}`} />
        </main>` : html`<${Page} path=${shown} query=${query} />`}</div>
      ${help && html`<${Dialog} title="Keys" onClose=${() => setHelp(false)}><dl class="keys">
        ${keysNow().map(([key, does]) => html`<div key=${key}><dt><kbd>${KEYS[key] ?? key}</kbd></dt><dd>${does}</dd>
          </div>`)}</dl>
        <p class="soft">Tab moves through everything, Enter opens. The address holds what is on the screen: copy it, and somebody
          else sees the same.</p><//>`}`;
  }

  function toContent(event) {
    event.preventDefault(); // the hash is the page's own
    document.getElementById("content").focus();
  }

  const KEYS = { ArrowRight: "→", ArrowLeft: "←", Escape: "Esc" };

  const start = document.querySelector('meta[name="peergrad-start"]')?.content; // of an export
  const first = start?.replace(/^debate\/([^/]+)\//, "source/$1/debate/");
  if (!location.hash && first?.startsWith("source/")) goQuietly(`#/${first}`);
  if (framed) addEventListener("click", (event) => { // a link in a frame without an address would open the notebook in it
    const link = event.target.closest?.('a[href^="#"]');
    if (!link) return;
    event.preventDefault();
    go(link.getAttribute("href"));
  });
  listenForKeys();
  watchChanges().then(() => {
    const root = document.getElementById("app");
    root.replaceChildren();
    render(html`<${App} />`, root);
  });
}
