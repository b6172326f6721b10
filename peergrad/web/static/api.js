// Where the data comes from: a server on this machine, or blocks inside this very file (docs/reference/view.md).

"use strict";
{
  const { useEffect, useState } = pg;

  const live = document.querySelector('meta[name="peergrad-mode"]')?.content !== "static";
  const EVERY = 1000; // milliseconds between two questions whether anything changed
  const listeners = new Set();
  const arrived = new Map(); // of an export in a folder: what its data files brought
  window.peergradData = (key, value) => arrived.set(key, value);

  // The object behind a key such as ["debate", id, part, 3]. What goes wrong is an Error with a sentence.
  async function get(key, query = {}) {
    if (!live) return embedded(key.join("/"));
    const kept = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
    const search = new URLSearchParams(kept).toString();
    const path = key.map((part) => encodeURIComponent(String(part).toWellFormed())).join("/");
    let answer;
    try {
      answer = await fetch(`api/${path}${search ? `?${search}` : ""}`);
    } catch {
      throw new Error("The viewer does not answer. Is `peergrad view` still running?");
    }
    const body = await answer.json().catch(() => ({ error: `The viewer answered ${answer.status}.` }));
    if (!answer.ok) throw new Error(body.error ?? `The viewer answered ${answer.status}.`);
    return body;
  }

  const blocks = new Map([...document.querySelectorAll("script[data-key]")].map((one) => [one.dataset.key, one]));
  const list = document.getElementById("peergrad-files");
  const files = new Map(Object.entries(list ? JSON.parse(list.textContent) : {}));

  // Whether there is something behind a key, as far as is known: an export holds what was chosen.
  function has(key) {
    return live || blocks.has(key.join("/")) || files.has(key.join("/"));
  }

  async function embedded(key) {
    if (blocks.has(key)) return JSON.parse(blocks.get(key).textContent);
    if (!arrived.has(key)) await loadFile(key);
    if (!arrived.has(key)) throw new Error("This is not part of the export. Open it with `peergrad view` on the folder itself.");
    return arrived.get(key);
  }

  function loadFile(key) {
    if (!files.has(key)) return Promise.resolve();
    return new Promise((done) => {
      const script = document.createElement("script");
      script.src = files.get(key);
      script.onload = script.onerror = done;
      document.head.append(script);
    });
  }

  // { data, error, loading } of a key. It is fetched again when its source changed; until then the old stays on the screen.
  function useData(key, query = {}, load = get) {
    const name = key && JSON.stringify([key, query]);
    const [state, setState] = useState({ name: null });
    useEffect(() => {
      if (!name) return undefined;
      let current = true;
      const fetchIt = () =>
        load(key, query).then(
          (data) => current && setState({ name, data }),
          (error) => current && setState((old) => ({ name, data: old.name === name ? old.data : undefined, error: error.message })),
        );
      fetchIt();
      const changed = (sources, list) => {
        if (key[0] === "sources" ? list || sources.length : key.some((part) => sources.includes(part))) fetchIt();
      };
      listeners.add(changed);
      return () => {
        current = false;
        listeners.delete(changed);
      };
    }, [name]);
    if (state.name === name) return { ...state, loading: false };
    const same = state.name && name && JSON.parse(state.name)[0].join() === key.join();
    return { data: same ? state.data : undefined, loading: Boolean(name) };
  }

  // Asks every second what changed, and tells whoever shows it; not while nobody looks. Done once the first answer is there.
  async function watchChanges() {
    if (!live) return;
    let cursor = await changesSince(undefined);
    const again = async () => {
      if (!document.hidden) cursor = await changesSince(cursor);
      setTimeout(again, EVERY);
    };
    setTimeout(again, EVERY);
  }

  async function changesSince(cursor) {
    try {
      const { cursor: next, sources, list } = await get(["changes"], { cursor });
      if (sources.length || list) for (const listener of [...listeners]) listener(sources, list);
      document.documentElement.classList.remove("offline");
      return next;
    } catch {
      document.documentElement.classList.add("offline");
      return cursor;
    }
  }

  Object.assign(pg, { live, get, has, useData, watchChanges });
}
