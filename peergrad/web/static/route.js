// The hash of the URL is the state of the page: #/run/demo?smooth=5. Whoever has the address sees the same.

"use strict";
{
  const { useEffect, useState } = pg;

  // "#/a/b?x=1" as { path: ["a", "b"], query: { x: "1" } }. A hash somebody sent may be anything.
  function readHash(hash) {
    const [path, query] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
    const entries = [...new URLSearchParams(query ?? "")].map(([name, value]) => [name, value]);
    return { path: path.split("/").filter(Boolean).map(decodePart), query: Object.fromEntries(entries) };
  }

  function decodePart(part) {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  }

  // The address of a page; a query value that is empty is left out.
  function address(path, query = {}) {
    const kept = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false);
    const search = new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
    return `#/${path.map((part) => encodeURIComponent(String(part).toWellFormed())).join("/")}${search ? `?${search}` : ""}`;
  }

  // The current route, and how to change its query: `set` keeps the rest of it, `push` makes a step in the history.
  function useRoute() {
    const [hash, setHash] = useState(location.hash);
    useEffect(() => {
      const changed = () => setHash(location.hash);
      addEventListener("hashchange", changed);
      changed(); // it may have changed before anybody listened
      return () => removeEventListener("hashchange", changed);
    }, []);
    return readHash(hash);
  }

  function setQuery(changes, { push = false } = {}) {
    const { path, query } = readHash(location.hash);
    const next = address(path, { ...query, ...changes });
    if (next === location.hash) return;
    if (push && !framed) history.pushState(null, "", next);
    else goQuietly(next);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }

  // In a notebook the page has no address of its own, and its history is the notebook's: only the hash can be set.
  const framed = location.protocol === "about:";

  function goQuietly(to) {
    if (framed) location.hash = to;
    else history.replaceState(null, "", to);
  }

  function go(to) {
    location.hash = to;
  }

  Object.assign(pg, { readHash, address, useRoute, setQuery, go, goQuietly, framed });
}
