// Numbers, times and names as people read them.

"use strict";
{
  const MINUS = "\u2212";

  function signed(value, digits = 2) {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return String(value);
    return `${value < 0 ? MINUS : "+"}${Math.abs(value).toFixed(digits)}`;
  }

  // A number in about four characters: 0.123, 12.3, 1,234, 1.2e-5.
  function short(value) {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return String(value);
    const size = Math.abs(value);
    let text = String(value);
    if (size >= 1e9 || (size > 0 && size < 1e-3)) text = value.toExponential(1);
    else if (size >= 1000) text = Math.round(value).toLocaleString("en");
    else if (!Number.isInteger(value)) text = value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
    return text.replace(/^-/, MINUS);
  }

  function percent(value, digits = 0) {
    return typeof value === "number" ? `${(value * 100).toFixed(digits).replace(/^-/, MINUS)} %` : "–";
  }

  function count(value) {
    return typeof value === "number" ? Math.round(value).toLocaleString("en") : "–";
  }

  function seconds(value) {
    if (typeof value !== "number") return "–";
    const whole = Math.round(value);
    const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
    if (hours) return `${hours.toLocaleString("en")} h ${String(minutes).padStart(2, "0")} min`;
    return minutes ? `${minutes} min ${String(rest).padStart(2, "0")} s` : value < 10 ? `${value.toFixed(1)} s` : `${rest} s`;
  }

  // How many of something: "1 debate", "3 debates".
  function many(n, one, more = `${one}s`) {
    return `${count(n)} ${n === 1 ? one : more}`;
  }

  function words(name) {
    return String(name).replaceAll("_", " ");
  }

  Object.assign(pg, { signed, short, percent, count, seconds, many, words });
}
