// The page: four views over one stream of events and one door for commands (server.py).
// What was said is text from outside: it is only ever put into text nodes, by preact.
import { html, render, useEffect, useLayoutEffect, useRef, useState } from "./preact-htm.js";

const SHOWN = 60; // lines of the live view
const PAGE = 50; // sentences that the history asks for at once
const HIDDEN_S = 30; // a page that nobody sees so long lets go of the stream
const DAY_MS = 86400e3;
const SILENT_MS = 1500; // without a level for this long, a meter shows none
const VIEWS = { live: "Live", history: "History", health: "Health", setup: "Setup" };
const ICONS = {
  live: "M4 10v4M8 6v12M12 9v6M16 4v16M20 10v4",
  history: "M4 6h16M4 12h16M4 18h10",
  health: "M3 12h4l3-7 4 14 3-7h4",
  setup: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
  bin: "M4 7h16M10 4h4M6 7l1 13h10l1-13M10 11v5M14 11v5",
};
const REASONS = {
  too_short: "too short", no_speech: "no speech in it", repetition: "only a repetition",
  low_confidence: "too unsure", overload: "there was too much at once",
  failed: "the model could not take it", set_aside: "it ended the appliance twice",
};
const FLAGS = {
  low_confidence: "unsure", repetition: "repeats itself", known_hallucination: "a usual invention",
  cut_at_window: "cut", clipped: "too loud", gap: "a gap", interrupted: "interrupted",
  token_limit: "cut", demo_model: "demonstration model",
};
const STATUSES = { running: "Listening", degraded: "Degraded", muted: "Muted" };

const session = { token: "", node: "", leaves: false, over: () => {} };

class Refusal extends Error {
  constructor(status, said) {
    super(said.error || "The page's server does not answer.");
    this.status = status;
  }
}

async function call(path, body) {
  const headers = { "X-Roomscribe-Token": session.token };
  if (body) headers["Content-Type"] = "application/json";
  let answer, said;
  try {
    answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) });
    said = await answer.json();
  } catch {
    throw new Refusal(0, {});
  }
  if (answer.status === 401 && session.token) session.over();
  if (!answer.ok) throw Object.assign(new Refusal(answer.status, said), { said });
  return said;
}

const ask = async (command, given = {}) => (await call("api/command", { command, ...given })).result;

// what the history has of it, a page after another
async function every(wanted, most = Infinity) {
  const lines = [];
  for (let before, more = true; more && lines.length < most; ) {
    const answer = await ask("history", { ...wanted, limit: 200, ...(before ? { before } : {}) });
    lines.push(...answer.transcripts);
    before = answer.transcripts.at(-1)?.seq;
    more = answer.more && before;
  }
  return lines;
}

// the one stream of events while the page is seen (a browser opens six connections to a host, for
// all its tabs together); `after` tells from where sentences are wanted
function useStream(events, after, told) {
  const latest = useRef(told), last = useRef(null);
  latest.current = told;
  useEffect(() => {
    if (after === undefined) return undefined;
    if (last.current === null) last.current = after;
    let source, timer;
    const open = () => {
      if (source && source.readyState !== 2) return;
      const query = new URLSearchParams({ events, ...(last.current === null ? {} : { after: last.current }) });
      source = new EventSource(`api/events?${query}`);
      for (const name of [...events.split(","), "daemon"])
        source.addEventListener(name, (event) => {
          const data = JSON.parse(event.data);
          if (name === "transcript") last.current = data.seq;
          latest.current(name, data);
        });
      source.onerror = () => {
        latest.current("daemon", { up: false, why: "The page's server does not answer." });
        if (source && source.readyState === 2) {
          clearTimeout(timer);
          timer = setTimeout(open, 3000); // refused: there may be a place later
          call("api/session").catch(() => {});
        }
      };
    };
    const close = () => source && (source.close(), (source = undefined));
    const seen = () => {
      clearTimeout(timer);
      if (document.hidden) timer = setTimeout(close, HIDDEN_S * 1000);
      else open();
    };
    seen();
    const on = [[document, "visibilitychange", seen], [window, "pagehide", close], [window, "pageshow", seen]];
    for (const [where, name, how] of on) where.addEventListener(name, how);
    return () => {
      for (const [where, name, how] of on) where.removeEventListener(name, how);
      clearTimeout(timer);
      close();
    };
  }, [events, after === undefined]);
}

const clock = (text, seconds = true) =>
  new Date(text).toLocaleTimeString([], { hourCycle: "h23", hour: "2-digit", minute: "2-digit", ...(seconds ? { second: "2-digit" } : {}) });
const dayOf = (text) => {
  const at = new Date(text);
  return new Date(at.getFullYear(), at.getMonth(), at.getDate()).getTime();
};
const dayName = (at) => {
  const ago = Math.round((dayOf(Date.now()) - at) / DAY_MS);
  if (ago === 0 || ago === 1) return ago ? "Yesterday" : "Today";
  return new Date(at).toLocaleDateString([], { weekday: "long", day: "numeric", month: "long", year: "numeric" });
};
const seconds = (ms) => (ms === null || ms === undefined ? "–" : `${(ms / 1000).toFixed(2)} s`);
const share = (value) => (value === null ? "" : `${Math.round(value * 100)} % sure`);
const span = (s) => {
  if (s === null || s === undefined) return "–";
  const [days, hours, minutes] = [s / 86400, (s / 3600) % 24, (s / 60) % 60].map(Math.floor);
  return days ? `${days} d ${hours} h` : hours ? `${hours} h ${minutes} min` : `${minutes} min`;
};
const words = (name) => (name.charAt(0).toUpperCase() + name.slice(1)).replaceAll("_", " ");

const Icon = ({ name }) =>
  html`<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d=${ICONS[name]} /></svg>`;

function Sentence({ one, onDelete }) {
  return html`<li data-seq=${one.seq}>
    <time datetime=${one.start}>${clock(one.start)}</time>
    <p lang=${one.language || null} dir="auto">${one.text}</p>
    ${onDelete && html`<button class="plain" aria-label=${`Delete: ${one.text}`} onClick=${onDelete}><${Icon} name="bin" /></button>`}
    ${one.phrase && html`<p class="expected">Nearest of those expected: <q>${one.phrase}</q> <span class="number">${share(one.phrase_confidence)}</span></p>`}
    <div class="about number">
      <span>${share(one.confidence)}</span><span>after ${seconds(one.latency_ms)}</span>
      ${(one.flags || []).map((flag) => html`<span class="chip" key=${flag}>${FLAGS[flag] || words(flag)}</span>`)}
    </div>
  </li>`;
}

const meters = new Set(); // are told each level

function Meter() {
  const canvas = useRef(), now = useRef({ rms: -90, peak: -90 });
  const [shown, setShown] = useState(null);
  const said = useRef(0), last = useRef(0);
  const hear = (data) => {
    last.current = Date.now();
    const rms = data.rms_db ?? -90, peak = data.peak_db ?? -90;
    now.current = { rms, peak: Math.max(peak, now.current.peak - 1.5), clipped: data.clipped };
    draw(canvas.current, now.current);
    if (Date.now() - said.current > 1000) {
      said.current = Date.now();
      setShown({ rms, clipped: data.clipped });
    }
  };
  useEffect(() => {
    meters.add(hear);
    const timer = setInterval(() => {
      if (Date.now() - last.current < SILENT_MS) return;
      now.current = { rms: -90, peak: -90 };
      draw(canvas.current, now.current);
      setShown(null);
    }, SILENT_MS);
    return () => (clearInterval(timer), meters.delete(hear));
  }, []);
  const text = shown === null ? "no sound yet" : shown.rms <= -89 ? "silence" : `${Math.round(shown.rms)} dB`;
  return html`<div class="meter">
    <div role="meter" aria-label="Level of the microphone" aria-valuemin="-70" aria-valuemax="0"
      aria-valuenow=${shown === null ? -70 : Math.max(-70, Math.round(shown.rms))} aria-valuetext=${text}>
      <canvas ref=${canvas} width="1200" height="36"></canvas>
    </div>
    <div class="scale number" aria-hidden="true"><span>quiet</span><span>${shown && shown.clipped ? "too loud" : text}</span><span>loud</span></div>
  </div>`;
}

function draw(canvas, { rms, peak, clipped }) {
  if (!canvas) return;
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const at = (db) => (Math.max(0, Math.min(70, db + 70)) / 70) * canvas.width;
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = style.getPropertyValue(clipped ? "--bad" : "--accent");
  pen.fillRect(0, 0, at(rms), canvas.height);
  pen.fillStyle = style.getPropertyValue("--soft");
  pen.fillRect(Math.max(0, at(peak) - 4), 0, 4, canvas.height);
}

function Live({ live, onMute }) {
  const muted = live.state && live.state.status === "muted";
  const [busy, setBusy] = useState(false), [trouble, setTrouble] = useState("");
  const last = live.lines.find((one) => one.text !== undefined);
  const mute = async () => {
    setBusy(true);
    setTrouble("");
    try {
      await onMute(!muted);
    } catch (error) {
      setTrouble(error.message);
    }
    setBusy(false);
  };
  const deaf = live.state?.microphone === "none";
  const heard = !live.up ? "The appliance is away" : muted ? "The microphone is closed" : deaf ? "No microphone" : live.speaking ? "Somebody speaks" : "Listening";
  return html`
    <section class="card now" aria-label="Now">
      <span class=${`light ${live.speaking && !muted ? "on" : ""}`} aria-hidden="true"></span>
      <div><strong>${heard}</strong>
        <div class="soft small number">${last ? `The last sentence took ${seconds(last.latency_ms)} from the end of speech.` : "Nothing was said yet."}</div></div>
      <button class=${muted ? "main" : ""} disabled=${!live.up} aria-disabled=${busy ? "true" : null} onClick=${() => busy || mute()}>${muted ? "Unmute" : "Mute"}</button>
      ${!muted && !deaf && live.up && html`<${Meter} />`}
      ${trouble && html`<p class="wrong" role="alert">${trouble}</p>`}
    </section>
    <section class="card" aria-labelledby="said">
      <h2 id="said">What was said</h2>
      <div role="log" aria-label="Sentences, the newest first"><ul class="said">
        ${live.partial && html`<li class="coming" key="coming"><time>now</time><p dir="auto">${live.partial.text} …</p></li>`}
        ${live.lines.map((one) =>
          one.text !== undefined
            ? html`<${Sentence} key=${`s${one.seq}`} one=${one} />`
            : html`<li class="none" key=${`d${one.key}`}><time>${clock(one.time)}</time><p>No text: ${REASONS[one.reason] || words(one.reason)}${one.duration_s ? ` (${one.duration_s.toFixed(1)} s)` : ""}</p></li>`
        )}
      </ul></div>
      ${!live.lines.length && !live.partial && html`<p class="empty">Say something: it stands here a moment later.</p>`}
    </section>`;
}

function Question({ question, onAnswer }) {
  const dialog = useRef();
  useLayoutEffect(() => {
    const shown = dialog.current;
    shown.showModal();
    return () => shown.close(); // gives the focus back to the button that opened it
  }, []);
  return html`<dialog ref=${dialog} aria-labelledby="question" onCancel=${(event) => (event.preventDefault(), onAnswer(false))}>
    <h2 id="question">${question.title}</h2>
    <p>${question.text}</p>
    <div class="row"><button class="push" autofocus onClick=${() => onAnswer(false)}>Keep</button>
      <button class="danger" onClick=${() => onAnswer(true)}>Delete for good</button></div>
  </dialog>`;
}

const placeOf = () => Object.fromEntries(new URLSearchParams(location.hash.split("?")[1] || ""));
const bounds = (day) => {
  if (!day) return {};
  const begin = new Date(typeof day === "string" ? `${day}T00:00` : day), end = new Date(begin);
  end.setDate(end.getDate() + 1);
  return { since: begin.toISOString(), until: end.toISOString() };
};

function History({ newest, onDelete }) {
  const kept = useRef(JSON.parse(sessionStorage.getItem("history") || "{}"));
  const [query, setQuery] = useState(placeOf().q || ""), [day, setDay] = useState(placeOf().day || "");
  const [found, setFound] = useState(null), [trouble, setTrouble] = useState("");
  const [question, setQuestion] = useState(null), [said, setSaid] = useState("");
  const turn = useRef(0), asked = useRef(null);
  const wanted = () => ({ ...(query.trim() ? { query: query.trim() } : {}), ...bounds(day) });
  const look = async (limit = PAGE, before = undefined) => {
    const mine = ++turn.current;
    try {
      const answer = await ask("history", { ...wanted(), limit, ...(before ? { before } : {}) });
      if (mine !== turn.current) return;
      const sentences = [...(before ? found.transcripts : []), ...answer.transcripts];
      sentences.sort((one, other) => other.seq - one.seq);
      setFound({ transcripts: sentences, total: before ? found.total : answer.total, more: answer.more });
      setTrouble("");
    } catch (error) {
      if (mine === turn.current) setTrouble(error.message);
    }
  };
  useEffect(() => {
    const place = new URLSearchParams({ ...(query ? { q: query } : {}), ...(day ? { day } : {}) }).toString();
    history.replaceState(null, "", `#history${place ? `?${place}` : ""}`);
    const again = asked.current === null ? Math.min(200, kept.current.count || PAGE) : PAGE;
    const timer = setTimeout(() => look(again), asked.current === null ? 0 : 150);
    asked.current = true;
    return () => clearTimeout(timer);
  }, [query, day]);
  useEffect(() => {
    if (found && !day && newest > (found.transcripts[0]?.seq ?? 0)) look(Math.min(200, Math.max(PAGE, found.transcripts.length)));
  }, [newest]);
  useLayoutEffect(() => {
    if (!found) return undefined;
    if (kept.current.y) scrollTo(0, kept.current.y);
    kept.current = {};
    const keep = () => sessionStorage.setItem("history", JSON.stringify({ y: scrollY, count: found.transcripts.length }));
    addEventListener("scroll", keep, { passive: true });
    return () => removeEventListener("scroll", keep);
  }, [found]);
  const remove = async (yes) => {
    const { given } = question;
    setQuestion(null);
    if (!yes) return;
    try {
      const { deleted } = await ask("delete", given);
      setSaid(`${deleted} ${deleted === 1 ? "sentence is" : "sentences are"} gone for good.`);
      onDelete();
      await look(Math.min(200, Math.max(PAGE, found.transcripts.length)));
    } catch (error) {
      setTrouble(error.message);
    }
  };
  const exported = async (kind) => {
    setSaid("Collecting …");
    try {
      const lines = await every(wanted());
      lines.sort((one, other) => one.seq - other.seq);
      save(kind, lines);
      setSaid(`${lines.length} sentences are in the file.`);
    } catch (error) {
      setSaid("");
      setTrouble(error.message);
    }
  };
  const days = [];
  for (const one of found ? found.transcripts : []) {
    const at = dayOf(one.start);
    if (!days.length || days.at(-1).at !== at) days.push({ at, lines: [] });
    days.at(-1).lines.push(one);
  }
  const dayQuestion = ({ at }) => {
    const given = bounds(at);
    setQuestion({ title: "Delete a whole day?", text: `Everything that was said on ${dayName(at).toLowerCase()} leaves the log for good.`, given });
  };
  return html`
    <section class="card" aria-label="Search">
      <div class="search" role="search">
        <label><span class="hidden">Words to search for</span><input id="query" type="search" placeholder="Search what was said" autocomplete="off" maxlength="200" value=${query} onInput=${(event) => setQuery(event.target.value)} /></label>
        <label><span class="hidden">Day</span><input type="date" value=${day} onInput=${(event) => setDay(event.target.value)} /></label>
      </div>
      <div class="row">
        <span class="soft number" role="status">${said || (found ? `${found.total} ${found.total === 1 ? "sentence" : "sentences"}` : "Searching …")}</span>
        <span class="push"></span>
        <button disabled=${!found || !found.total} aria-label="Save as CSV" onClick=${() => exported("csv")}>CSV</button>
        <button disabled=${!found || !found.total} aria-label="Save as JSON lines" onClick=${() => exported("jsonl")}>JSON</button>
      </div>
    </section>
    ${trouble && html`<p class="banner bad" role="alert">${trouble}</p>`}
    ${found && html`<section class="card" aria-label="Sentences">
      ${days.map((one) => html`<div key=${one.at}>
        <div class="day"><h3>${dayName(one.at)}</h3><button class="plain small" onClick=${() => dayQuestion(one)}>Delete this day</button></div>
        <ul class="said">${one.lines.map((line) => html`<${Sentence} key=${line.seq} one=${line}
          onDelete=${() => setQuestion({ title: "Delete this sentence?", text: `“${line.text}” leaves the log for good.`, given: { ids: [line.id] } })} />`)}</ul>
      </div>`)}
      ${!days.length && html`<p class="empty">${query || day ? "Nothing in the log is like that." : "The log is empty."}</p>`}
      ${found.more && html`<button onClick=${() => look(PAGE, found.transcripts.at(-1).seq)}>Show older ones</button>`}
    </section>`}
    ${question && html`<${Question} question=${question} onAnswer=${remove} />`}`;
}

// a file made in the browser; a cell that a spreadsheet would compute is written as text
function save(kind, lines) {
  const names = Object.keys(lines[0] || {});
  const cell = (value) => {
    const text = String((Array.isArray(value) ? value.join(" ") : value) ?? "");
    return `"${(/^[=+\-@\t\r]/.test(text) && typeof value !== "number" ? `'${text}` : text).replaceAll('"', '""')}"`;
  };
  const text = kind === "csv"
    ? [names.join(","), ...lines.map((one) => names.map((name) => cell(one[name])).join(","))].join("\r\n")
    : lines.map((one) => JSON.stringify(one)).join("\n");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text, "\n"], { type: kind === "csv" ? "text/csv" : "application/x-ndjson" }));
  link.download = `roomscribe-${session.node}-${new Date().toISOString().slice(0, 10)}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60e3);
}

// a day in a plot: `draw` makes its content of the scale, from 0 to `top`
function DayPlot({ label, top, unit, draw }) {
  const now = Date.now(), wide = innerWidth < 768 ? 340 : 720; // letters of a readable size on a phone, too
  const x = (ms) => 54 + (1 - (now - ms) / DAY_MS) * (wide - 68), y = (value) => 10 + (1 - Math.min(value, top) / top) * 160;
  const hours = (wide < 720 ? [24, 12, 0] : [24, 18, 12, 6, 0]).map((ago) => ({ ago, at: now - ago * 3600e3 }));
  return html`<figure class="plot">
    <svg viewBox=${`0 0 ${wide} 200`} role="img" aria-label=${label}>
      ${[0, 0.5, 1].map((part) => html`<g key=${part}><line class="grid" x1="54" x2=${wide - 10} y1=${y(top * part)} y2=${y(top * part)} />
        <text x="46" y=${y(top * part) + 4} text-anchor="end">${unit(top * part)}</text></g>`)}
      ${hours.map((one) => html`<text key=${one.ago} x=${x(one.at)} y="194" text-anchor=${one.ago === 24 ? "start" : one.ago ? "middle" : "end"}>${one.ago ? clock(one.at, false) : "now"}</text>`)}
      ${draw(x, y, wide)}
    </svg>
    <figcaption class="soft small">${label}</figcaption>
  </figure>`;
}

const topOf = (steps, value) => steps.find((step) => step >= value) || value;

function Latency({ sentences }) {
  const known = sentences.filter((one) => one.latency_ms !== null && !one.late);
  const sorted = known.map((one) => one.latency_ms).sort((a, b) => a - b);
  if (!sorted.length) return html`<p class="empty">Nothing was said in the last 24 hours.</p>`;
  const at = (part) => sorted[Math.max(0, Math.ceil(sorted.length * part) - 1)];
  const label = `${sorted.length} in the last 24 hours: half of them at most ${seconds(at(0.5))}, 95 of 100 at most ${seconds(at(0.95))}, the slowest ${seconds(at(1))}.`;
  return html`<${DayPlot} label=${label} unit=${(ms) => `${ms / 1000} s`}
    top=${topOf([250, 500, 1000, 2000, 3000, 5000, 10000, 20000, 50000, 1e5], at(0.99))}
    draw=${(x, y, wide) => html`<line class="middle" x1="54" x2=${wide - 10} y1=${y(at(0.5))} y2=${y(at(0.5))} />
      <path class="dots" d=${known.map((one) => `M${x(new Date(one.end)).toFixed(1)} ${y(one.latency_ms).toFixed(1)}h0`).join("")} />`} />`;
}

// a stretch without the daemon is a gap in the line
function Memory({ day }) {
  const points = day.memory_mb, most = Math.max(...points.map(([, mb]) => mb)), last = points.at(-1)[1];
  const label = `The daemon's process: ${Math.round(last)} MB now, ${Math.round(most)} MB at most. A restart keeps this, a stop forgets it.`;
  const path = (x, y) => points.map(([at, mb], n) => {
    const gap = !n || at - points[n - 1][0] > 2 * day.every_s;
    return `${gap ? "M" : "L"}${x(at * 1000).toFixed(1)} ${y(mb).toFixed(1)}${gap ? "h.1" : ""}`;
  }).join("");
  return html`<${DayPlot} label=${label} unit=${(mb) => `${mb} MB`} top=${topOf([50, 100, 200, 300, 500, 1000, 2000, 4000, 8000], most)}
    draw=${(x, y) => html`<path class="line" d=${path(x, y)} />`} />`;
}

const Figures = ({ of: figures }) => html`<dl class="figures">
  ${figures.filter(([, value]) => value !== undefined).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value ?? "–"}</dd></div>`)}
</dl>`;

function Health({ live }) {
  const { state, stats } = live, [day, setDay] = useState(null), [trouble, setTrouble] = useState("");
  useEffect(() => {
    let gone = false;
    const look = async () => {
      try {
        const memory = await ask("day"), lines = await every({ since: new Date(Date.now() - DAY_MS).toISOString() }, 2000);
        if (!gone) setDay({ lines, memory }), setTrouble("");
      } catch (error) {
        if (!gone) setTrouble(error.message);
      }
    };
    look();
    const timer = setInterval(look, 60e3);
    return () => ((gone = true), clearInterval(timer));
  }, [live.up]);
  const degrees = (value) => (value === null || value === undefined ? undefined : `${value.toFixed(1)} °C`);
  const outcome = (state && { running: state.reasons.length ? "It works. One thing to know:" : "All is well.", muted: "The microphone is closed on request.", degraded: "Action needed:" }[state.status]) || "";
  return html`
    <section class="card" aria-labelledby="state">
      <h2 id="state">State</h2>
      <p>${live.up ? outcome : "It is away; this is what it said last."}</p>
      ${state && state.reasons.length > 0 && html`<ul class="reasons">${state.reasons.map((reason) => html`<li key=${reason}>${reason}</li>`)}</ul>`}
      ${state && html`<${Figures} of=${[
        ["microphone", state.microphone], ["model", state.model], ["encoder", state.encoder], ["version", state.version],
        ["running for", span(state.uptime_s)], ["windows that wait", state.queue_depth], ["waiting for the broker", state.outbox_depth]]} />`}
    </section>
    <section class="card" aria-labelledby="latency"><h2 id="latency">Latency of a day</h2>
      ${trouble ? html`<p class="wrong" role="alert">${trouble}</p>` : day ? html`<${Latency} sentences=${day.lines} />` : html`<p class="soft">Looking …</p>`}
    </section>
    ${day && html`<section class="card" aria-labelledby="memory"><h2 id="memory">Memory of a day</h2><${Memory} day=${day.memory} /></section>`}
    ${stats && html`<section class="card" aria-labelledby="counters"><h2 id="counters">Since the start</h2>
      <${Figures} of=${[
        ["transcripts", stats.transcripts],
        ...Object.entries(stats.discarded).map(([name, value]) => [`no text: ${REASONS[name] || words(name)}`, value]),
        ["found again after a crash", stats.recovered], ["sound lost, in frames", stats.frames_dropped],
        ["lost: too much at once", stats.lost_overload], ["not told in time", stats.expired],
        ["processor", degrees(stats.soc_temperature_c)], ["NPU", degrees(stats.npu_temperature_c)],
        ["power", stats.throttling ? stats.throttling.join(", ") || "good" : undefined]]} />
    </section>`}
    <p class="soft small"><code>sudo roomscribe doctor</code> looks at everything and names each cure.</p>`;
}

const SETUP = [
  ["Microphone", ["capture.device"]],
  ["Room", ["appliance.node", "homeassistant.area"]],
  ["Model", ["model.bundle", "decoder.preset"]],
  ["Words", ["vocabulary.words", "vocabulary.replace", "vocabulary.boost"]],
  ["Broker", ["mqtt.enabled", "homeassistant.enabled", "mqtt.partials", "mqtt.retain_last"]],
  ["Log", ["store.retention_days", "store.retention_count", "store.retention_mb"]],
];
const NAMES = {
  "appliance.node": "Name in topics and events", "homeassistant.area": "Room in Home Assistant",
  "vocabulary.words": "Words of this home", "vocabulary.replace": "What is written in place of another word", "vocabulary.boost": "How much is done for them",
  "model.bundle": "Model", "decoder.preset": "Against running on", "mqtt.enabled": "Publish to MQTT",
  "homeassistant.enabled": "Announce to Home Assistant", "mqtt.partials": "Tell what somebody says so far",
  "mqtt.retain_last": "Leave the last sentence on the broker", "store.retention_days": "Days that sentences are kept",
  "store.retention_count": "Sentences that are kept", "store.retention_mb": "Space for the log",
};
const listed = { list: "one a line", table: "one a line: what is heard = what is written" };
// a key's value as it is edited, and back; null for what is none
const asText = (kind, value) =>
  kind === "list" ? value.join("\n") : kind === "table" ? Object.entries(value).map((pair) => pair.join(" = ")).join("\n") : value;
const asValue = (kind, text) => {
  if (kind === "int" || kind === "float") return String(text).trim() !== "" && isFinite(text) ? Number(text) : text;
  if (!listed[kind]) return text;
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  if (kind === "list") return lines;
  const pairs = lines.map((line) => /^(.*?)\s*=\s*(.*)$/.exec(line));
  return pairs.every(Boolean) ? Object.fromEntries(pairs.map(([, heard, written]) => [heard, written])) : null;
};
const VERDICTS = {
  good: "This is a good level.", clipped: "This is too loud: move away, or turn the microphone down.",
  too_quiet: "This is too quiet: come closer, or turn the microphone up.",
  digital_silence: "Nothing at all came: the microphone is off, or muted in the mixer.",
};

function Key({ name, about, value, mistake, choices, onInput }) {
  const id = `key-${name}`, title = NAMES[name] || `${words(name.split(".")[1])}`;
  const shared = { id, "aria-invalid": Boolean(mistake), "aria-describedby": `${id}-about ${id}-wrong` };
  const number = about.kind === "int" || about.kind === "float";
  const limits = number && about.low !== null ? ` (${about.low} to ${about.high}${about.unit ? ` ${about.unit}` : ""})` : "";
  const field = listed[about.kind]
    ? html`<textarea ...${shared} rows="4" spellcheck=${false} placeholder=${listed[about.kind]} value=${value} onInput=${(event) => onInput(event.target.value)}></textarea>`
    : about.kind === "bool"
    ? html`<input ...${shared} type="checkbox" checked=${value} onChange=${(event) => onInput(event.target.checked)} />`
    : choices
      ? html`<select ...${shared} value=${value} onChange=${(event) => onInput(event.target.value)}>${choices.map(([one, shown]) => html`<option key=${one} value=${one} selected=${one === value}>${shown}</option>`)}</select>`
      : html`<input ...${shared} type="text" inputmode=${number ? "decimal" : null} autocomplete="off" spellcheck=${false} value=${value} onInput=${(event) => onInput(event.target.value)} />`;
  const label = html`<label for=${id}>${title}</label>`;
  return html`<div class=${`field ${about.kind === "bool" ? "check" : ""}`}>
    ${about.kind === "bool" ? [field, label] : [label, field]}
    ${mistake && html`<p class="wrong" id=${`${id}-wrong`} role="alert">${mistake}</p>`}
    <p class="soft small" id=${`${id}-about`}>${about.sentence.split("`").map((part, n) => (n % 2 ? html`<code>${part}</code>` : part))}${limits} <code>${name}</code></p>
  </div>`;
}

const megabytes = (mb) => (mb === null ? "" : mb < 1000 ? `${Math.round(mb)} MB` : `${(mb / 1000).toFixed(1)} GB`);

// what can be added, how far one is, and why one was not
function Models({ models, busy, trouble, onAdd, onCancel }) {
  const { offered, adding, failed, possible } = models;
  if (adding) {
    const share = adding.total ? adding.done / adding.total : undefined;
    const far = adding.total ? `${megabytes(adding.done / 1e6)} of ${megabytes(adding.total / 1e6)}` : "";
    return html`<div class="field" role="group" aria-labelledby="adding"><p id="adding"><strong>Adding ${adding.name}</strong></p>
      <progress aria-labelledby="adding" max="1" value=${share}></progress>
      <p class="soft small number">${adding.doing}${far && `: ${far}`}</p>
      <div class="row"><button type="button" disabled=${busy} onClick=${onCancel}>Cancel</button><span class="soft small">What was downloaded is kept.</span></div></div>`;
  }
  return html`${offered.length > 0 && html`<h3>More models</h3><ul class="offers">${offered.map((one) => html`<li key=${one.name}>
      <div><strong>${one.name}</strong> <span class="soft small">${megabytes(one.download_mb)} to download${one.begun_mb ? `, ${megabytes(one.begun_mb)} of them are there` : ""}; ${megabytes(one.size_mb)} on the disk, ${megabytes(one.memory_mb)} of memory${one.fits ? "" : ": more than is free"}</span></div>
      <button type="button" disabled=${busy || !possible || !one.fits} aria-label=${`Add ${one.name}`} onClick=${() => onAdd(one.name)}>${one.begun_mb ? "Go on" : "Add"}</button>
      ${(trouble?.name === one.name || failed?.name === one.name) && html`<p class="wrong" role="alert">${trouble?.name === one.name ? trouble.error : failed.error}</p>`}
    </li>`)}</ul>`}
    ${!possible && html`<p class="soft small"><code>sudo roomscribe model add NAME</code> adds one; from here it can be done once <code>sudo roomscribe web enable</code> has run.</p>`}`;
}

const BROKER = { host: "Host", port: "Port", username: "User", password: "Password" };

// the login is tried before anything is kept; the password is never sent back
function Broker({ broker, away, onKept }) {
  const [draft, setDraft] = useState(null), [mistakes, setMistakes] = useState({}), [said, setSaid] = useState(""), [busy, setBusy] = useState(false);
  const shown = { ...broker, password: "", ...draft };
  const type = (name, value) => (setDraft({ ...draft, [name]: value }), setSaid(""));
  const keep = async () => {
    setBusy(true);
    setSaid("Trying …");
    setMistakes({});
    try {
      const { password, ...others } = { ...shown };
      const port = /^\d+$/.test(others.port) ? Number(others.port) : others.port;
      const answer = await ask("broker", { ...others, port, ...(password ? { password } : {}) });
      setMistakes(answer.mistakes || {});
      setSaid(answer.mistakes ? "Nothing was changed." : answer.changed.length ? "The broker lets it in. Saved." : "The broker lets it in.");
      if (answer.mistakes) document.getElementById(Object.keys(answer.mistakes)[0].replace("mqtt.", "broker-"))?.focus();
      else setDraft(null), onKept();
    } catch (error) {
      setSaid(error.message);
    }
    setBusy(false);
  };
  const entered = (event) => event.key === "Enter" && (event.preventDefault(), draft && !busy && keep());
  return html`<div class="broker" role="group" aria-label="The broker's address and login" onKeyDown=${entered}>
    ${Object.entries(BROKER).map(([name, title]) => html`<div class="field" key=${name}>
      <label for=${`broker-${name}`}>${title}</label>
      <input id=${`broker-${name}`} type=${name === "password" ? "password" : "text"} inputmode=${name === "port" ? "numeric" : null} spellcheck=${false}
        autocomplete=${name === "password" ? "new-password" : "off"} placeholder=${name === "password" && broker.password ? "there is one" : ""} value=${shown[name]}
        aria-invalid=${Boolean(mistakes[`mqtt.${name}`])} aria-describedby=${`broker-${name}-wrong`} onInput=${(event) => type(name, event.target.value)} />
      ${mistakes[`mqtt.${name}`] && html`<p class="wrong" id=${`broker-${name}-wrong`} role="alert">${mistakes[`mqtt.${name}`]}</p>`}
    </div>`)}
    <div class="field check"><input id="broker-tls" type="checkbox" checked=${shown.tls} aria-describedby="broker-tls-wrong" onChange=${(event) => type("tls", event.target.checked)} />
      <label for="broker-tls">Encrypted (TLS)</label>${mistakes["mqtt.tls"] && html`<p class="wrong" id="broker-tls-wrong" role="alert">${mistakes["mqtt.tls"]}</p>`}</div>
    <div class="row"><button type="button" disabled=${!draft || busy || away} onClick=${keep}>Try and save the broker</button><span class="soft" role="status">${said}</span></div>
  </div>`;
}

function Setup({ live }) {
  const [models, setModels] = useState(null), [moving, setMoving] = useState(false), [refused, setRefused] = useState(null);
  const [known, setKnown] = useState(null), [drafts, setDrafts] = useState({}), [mistakes, setMistakes] = useState({});
  const [devices, setDevices] = useState(null), [trouble, setTrouble] = useState(""), [said, setSaid] = useState("");
  const [test, setTest] = useState(null);
  const look = async () => {
    try {
      const about = await call("api/keys"), { settings, broker } = await ask("settings");
      setKnown({ about, settings, broker });
      setTrouble("");
      await lookAtModels();
    } catch (error) {
      setTrouble(error.message);
    }
    ask("devices").then((found) => setDevices(found), () => setDevices({ devices: [] }));
  };
  const lookAtModels = async () => setModels(await ask("models"));
  useEffect(() => void look(), [live.up]);
  const adding = Boolean(models?.adding);
  useEffect(() => {
    if (!adding) return undefined;
    const timer = setInterval(() => lookAtModels().catch(() => {}), 1000);
    return () => clearInterval(timer);
  }, [adding]);
  const move = async (command, name) => {
    setMoving(true);
    setRefused(null);
    try {
      await ask(command, name ? { model: name } : {});
      await lookAtModels();
    } catch (error) {
      setRefused({ name, error: error.message });
    }
    setMoving(false);
  };
  const keep = async (event) => {
    event.preventDefault();
    setSaid("");
    try {
      const set = Object.fromEntries(Object.entries(drafts).map(([name, text]) => [name, asValue(known.about[name].kind, text)]));
      const torn = Object.keys(set).find((name) => set[name] === null);
      const answer = torn ? { mistakes: { [torn]: `expected ${listed.table}` } } : await ask("configure", { set });
      setMistakes(answer.mistakes || {});
      if (answer.mistakes) {
        setSaid("Nothing was changed: see the fields.");
        document.getElementById(`key-${Object.keys(answer.mistakes)[0]}`)?.focus();
        return;
      }
      setDrafts({});
      await look();
      setSaid("Saved. The appliance goes on with it at once.");
    } catch (error) {
      setTrouble(error.message);
    }
  };
  const listen = async () => {
    setTest({ busy: true });
    try {
      setTest(await ask("microphone_test", { seconds: 5 }));
    } catch (error) {
      setTest({ trouble: error.message });
    }
  };
  if (!known) return html`${trouble ? html`<p class="banner bad" role="alert">${trouble}</p>` : html`<p class="soft">Looking …</p>`}`;
  const { about, settings } = known;
  const grouped = new Set(SETUP.flatMap(([, names]) => names));
  const choicesOf = (name, value) => {
    if (about[name].choices.length) return about[name].choices.map((one) => [one, one]);
    if (name === "model.bundle" && models) {
      const found = models.models.map((one) => [one.name, `${one.name}, ${one.size_mb === null ? "damaged" : megabytes(one.size_mb)}${one.npu ? ", for the NPU, too" : ""}`]);
      return [["", "What roomscribe model use chose, else home-en"], ...found, ...(value && !found.some(([one]) => one === value) ? [[value, `${value} (not there)`]] : [])];
    }
    if (name !== "capture.device" || !devices || !devices.devices.length) return null;
    const found = devices.devices.map((one) => [one.name, one.name]);
    return [["", "The default one"], ...found, ...(value && !found.some(([one]) => one === value) ? [[value, `${value} (not there)`]] : [])];
  };
  const field = (name) => {
    const kept = asText(about[name].kind, settings[name].value), value = name in drafts ? drafts[name] : kept;
    return html`<${Key} key=${name} name=${name} about=${about[name]} value=${value} mistake=${mistakes[name]}
      choices=${choicesOf(name, value)} onInput=${(text) => {
        const { [name]: _, ...others } = drafts;
        setDrafts(text === kept ? others : { ...others, [name]: text });
        setSaid("");
      }} />`;
  };
  const has = (name) => name in settings && name in about;
  const rest = Object.keys(settings).filter((name) => !grouped.has(name) && has(name));
  const count = Object.keys(drafts).length;
  return html`<form class="setup" onSubmit=${keep}>
    ${trouble && html`<p class="banner bad" role="alert">${trouble}</p>`}
    ${SETUP.map(([title, names]) => html`<fieldset class="card" key=${title}>
      <legend><h2>${title}</h2></legend>
      ${names.filter(has).map(field)}
      ${title === "Microphone" && html`${live.up && live.state?.status !== "muted" && html`<${Meter} />`}
        <div class="row"><button type="button" disabled=${test?.busy || !live.up} onClick=${listen}>${test?.busy ? "Say a sentence …" : "Test for 5 seconds"}</button></div>
        <div role="status">${test && !test.busy && html`<p>${test.trouble || VERDICTS[test.verdict]}${test.peak_db !== undefined && test.peak_db !== null ? html` <span class="soft number">Loudest ${Math.round(test.peak_db)} dB.</span>` : ""}</p>
          ${test.words && html`<p class="soft">It heard: “${test.words}”</p>`}`}</div>`}
      ${title === "Model" && html`<p class="soft small">In use: ${live.state?.model} on ${live.state?.encoder}.</p>
        ${models && html`<${Models} models=${models} busy=${moving || !live.up} trouble=${refused} onAdd=${(name) => move("model_add", name)} onCancel=${() => move("model_cancel")} />`}`}
      ${title === "Broker" && html`<${Broker} broker=${known.broker} away=${!live.up} onKept=${look} />`}
    </fieldset>`)}
    <details class="card"><summary><h2>Everything else</h2></summary>${rest.map(field)}</details>
    <div class=${count || said ? "keep" : "hidden"}><span class="soft" role="status">${said || (count ? `${count} ${count === 1 ? "change" : "changes"}` : "")}</span>
      ${count > 0 && html`<button type="button" class="plain push" onClick=${() => (setDrafts({}), setMistakes({}))}>Take back</button>`}
      <button class=${`main ${count ? "" : "push"}`} disabled=${!count || !live.up}>Save</button></div>
  </form>`;
}

function Login({ offer, onDone, trouble: given }) {
  const [trouble, setTrouble] = useState(given), [busy, setBusy] = useState(false), field = useRef();
  const enter = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await call("api/login", { password: field.current.value });
      await onDone();
    } catch (error) {
      setTrouble(error.message);
      field.current.select();
    }
    setBusy(false);
  };
  return html`<main class="login"><form class="card" onSubmit=${enter}>
    <div class="row"><img src="icon.svg" alt="" /><h1>Roomscribe</h1></div>
    ${offer.password && html`<input class="hidden" type="text" name="username" value="roomscribe" autocomplete="username" tabindex="-1" aria-hidden="true" readonly />
      <div class="field"><label for="password">Password</label>
      <input id="password" ref=${field} type="password" autocomplete="current-password" required autofocus aria-invalid=${Boolean(trouble)} aria-describedby="why" /></div>`}
    ${trouble && html`<p class="wrong" id="why" role="alert">${trouble}</p>`}
    ${offer.password && html`<button class="main" disabled=${busy}>Log in</button>`}
    <p class="soft">${offer.password ? "Or" : "To log in,"} run <code>sudo roomscribe web open</code> on the appliance and open the link that it prints.</p>
  </form></main>`;
}

const viewOf = () => {
  const name = location.hash.slice(1).split("?")[0];
  return name in VIEWS ? name : "live";
};

function App() {
  const [view, setView] = useState(viewOf());
  const [live, setLive] = useState({ up: true, why: "", state: null, stats: null, speaking: false, partial: null, lines: [] });
  const [from, setFrom] = useState(undefined), main = useRef(), number = useRef(0), away = useRef(false);
  const change = (how) => setLive((before) => ({ ...before, ...how(before) }));
  const fill = async () => {
    try {
      const state = await ask("state"), stats = await ask("stats");
      change(() => ({ state, stats, up: true }));
      const { transcripts } = await ask("history", { limit: 30 });
      const newest = [...transcripts].sort((one, other) => other.seq - one.seq);
      change((before) => (before.lines.length ? {} : { lines: newest }));
      return newest.length ? newest[0].seq : 0;
    } catch (error) {
      change(() => ({ up: false, why: error.message }));
      away.current = true;
      return null;
    }
  };
  useEffect(() => {
    fill().then(setFrom);
    const moved = () => (setView(viewOf()), scrollTo(0, 0), main.current && main.current.focus());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => {
    document.title = `${VIEWS[view]} · Roomscribe ${session.node}`;
  }, [view]);
  // the daemon measures the level for those alone who show it
  const level = view === "live" || view === "setup" ? ",level" : "";
  useStream(`transcript,discarded,state,stats,speech,partial${level}`, from, (name, data) => {
    if (name === "level") for (const hear of meters) hear(data);
    else if (name === "daemon") {
      change(() => (data.up ? { up: true, why: "" } : { up: false, why: data.why, speaking: false, partial: null }));
      if (data.up && away.current) fill();
      away.current = !data.up;
    } else if (name === "transcript")
      change((before) => ({
        lines: [data, ...before.lines.filter((one) => one.seq !== data.seq)].slice(0, SHOWN),
        partial: before.partial && before.partial.utterance_id !== data.utterance_id ? before.partial : null,
      }));
    else if (name === "discarded")
      change((before) => ({
        lines: [{ time: Date.now(), ...data, key: ++number.current }, ...before.lines].slice(0, SHOWN),
        partial: before.partial && before.partial.utterance_id !== data.utterance_id ? before.partial : null,
      }));
    else if (name === "speech") change(() => ({ speaking: data.speaking }));
    else if (name === "partial") change(() => ({ partial: data.text && !data.final ? data : null }));
    else change(() => ({ [name]: data }));
  });
  const mute = async (on) => {
    await ask("mute", { on });
    const state = await ask("state");
    change(() => ({ state }));
  };
  const status = live.up ? live.state?.status : "away";
  const newest = live.lines.find((one) => one.seq !== undefined)?.seq ?? 0;
  return html`
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), main.current.focus())}>To the content</a>
    <header><div class="bar">
      <img src="icon.svg" alt="" />
      <h1>Roomscribe<span>${session.node}</span></h1>
      <span class="push"></span>
      <nav aria-label="Views"><ul>${Object.entries(VIEWS).map(([name, shown]) => html`<li key=${name}>
        <a href=${`#${name}`} aria-current=${name === view ? "page" : null}><${Icon} name=${name} />${shown}</a></li>`)}</ul></nav>
      <span class=${`pill ${status || ""}`} role="status">${STATUSES[status] || (live.up ? "…" : "Away")}</span>
    </div></header>
    <main id="main" ref=${main} tabindex="-1">
      <h2 class="hidden">${VIEWS[view]}</h2>
      ${!live.up && html`<p class="banner bad" role="alert">${live.why}</p>`}
      ${live.up && view === "live" && live.state?.status === "degraded" && html`<p class="banner" role="status">${live.state.reasons[0]} <a href="#health">Health</a></p>`}
      ${view === "live" && html`<${Live} live=${live} onMute=${mute} />`}
      ${view === "history" && html`<${History} newest=${newest} onDelete=${() => (change(() => ({ lines: [] })), fill())} />`}
      ${view === "health" && html`<${Health} live=${live} />`}
      ${view === "setup" && html`<${Setup} live=${live} />`}
      ${session.leaves && html`<div class="row"><button class="plain small push" onClick=${async () => (await call("api/logout", {}), location.reload())}>Log out</button></div>`}
    </main>`;
}

function Door() {
  const [inside, setInside] = useState(null), [offer, setOffer] = useState({});
  const enter = async () => {
    Object.assign(session, await call("api/session"));
    setInside(true);
  };
  const knock = async () => {
    const link = location.hash.startsWith("#link=") ? location.hash.slice(6) : "";
    let trouble = "";
    if (link) {
      history.replaceState(null, "", location.pathname); // it is good once, and no word for a history
      await call("api/login", { link }).catch((error) => (trouble = error.message));
    }
    try {
      await enter();
    } catch (error) {
      setOffer({ trouble: trouble || (error.status === 401 ? "" : error.message), password: error.said?.password });
      setInside(false);
    }
  };
  useEffect(() => {
    session.over = () => location.reload();
    knock();
    // a link that is pasted into this tab changes the part behind the # alone, and loads nothing
    const pasted = () => location.hash.startsWith("#link=") && knock();
    addEventListener("hashchange", pasted);
    return () => removeEventListener("hashchange", pasted);
  }, []);
  if (inside === null) return null;
  return inside ? html`<${App} />` : html`<${Login} offer=${offer} trouble=${offer.trouble} onDone=${enter} />`;
}

render(html`<${Door} />`, document.getElementById("page"));
