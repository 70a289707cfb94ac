// Client of the page's server: commands, and one stream of events.

const HIDDEN_S = 30; // a page that is hidden for this long closes its stream
const AGAIN_MS = 3000; // after a refused stream

/** The login: the token that each command needs, the appliance's name, whether the user can log
 * out, play sentences, and has still to see the first steps. `over` runs when the session has ended. */
export const session = { token: "", node: "", leaves: false, playback: false, first_steps: false, over: () => {} };

/** A request that was refused or not answered; `status` is HTTP's, or 0. */
export class Refusal extends Error {
  constructor(status, answer) {
    super(answer.error || "The server of this page does not answer.");
    this.status = status;
    this.answer = answer;
  }
}

/** Return the JSON of `path`; a body makes it a POST. Raises Refusal. */
export async function call(path, body) {
  const headers = { "X-Roomscribe-Token": session.token };
  if (body) headers["Content-Type"] = "application/json";
  let response, answer;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) });
    answer = await response.json();
  } catch {
    throw new Refusal(0, {});
  }
  if (response.status === 401 && session.token) session.over();
  if (!response.ok) throw new Refusal(response.status, answer);
  return answer;
}

/** Return the daemon's result of a command. Raises Refusal. */
export const command = async (name, given = {}) => (await call("api/command", { ...given, command: name })).result;

/** Return the sentences of the log that match, at most about `most`. Raises Refusal. */
export async function readLog(wanted, most = Infinity) {
  const lines = [];
  for (let before, more = true; more && lines.length < most; ) {
    const answer = await command("history", { ...wanted, limit: 200, ...(before ? { before } : {}) });
    lines.push(...answer.transcripts);
    before = answer.transcripts.at(-1)?.seq;
    more = answer.more && before;
  }
  return lines;
}

/** The daemon's events while the page is visible: a browser opens six connections to a host, for all
 * its tabs together. `receive(name, data)` is called for each event; "daemon" tells whether there
 * is a connection (`up`) and, if not, `why`. */
export class Stream {
  #receive;
  #events = "";
  #after;
  #source;
  #timer;

  constructor(receive) {
    this.#receive = receive;
    document.addEventListener("visibilitychange", () => this.#connectIfVisible());
    addEventListener("pagehide", () => this.#close());
    addEventListener("pageshow", () => this.#connectIfVisible());
  }

  /** Begin with the sentences after the number `after`; null: with the next one. */
  start(after) {
    this.#after = after;
    this.#connectIfVisible();
  }

  /** Receive these events, a text with commas, in place of the others. */
  listen(events) {
    if (events === this.#events) return;
    this.#events = events;
    this.#close();
    this.#connectIfVisible();
  }

  #connectIfVisible() {
    clearTimeout(this.#timer);
    if (this.#after === undefined || !this.#events) return;
    if (document.hidden) this.#timer = setTimeout(() => this.#close(), HIDDEN_S * 1000);
    else this.#open();
  }

  #open() {
    if (this.#source && this.#source.readyState !== EventSource.CLOSED) return;
    const from = this.#after === null ? {} : { after: this.#after };
    const source = new EventSource(`api/events?${new URLSearchParams({ events: this.#events, ...from })}`);
    for (const name of [...this.#events.split(","), "daemon"])
      source.addEventListener(name, (event) => {
        const data = JSON.parse(event.data);
        if (name === "transcript") this.#after = data.seq;
        this.#receive(name, data);
      });
    source.onerror = () => this.#failed(source);
    this.#source = source;
  }

  #failed(source) {
    this.#receive("daemon", { up: false, why: "The server of this page does not answer." });
    if (source.readyState !== EventSource.CLOSED) return; // the browser tries again
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#connectIfVisible(), AGAIN_MS);
    call("api/session").catch(() => {}); // ends the page if the session has ended
  }

  #close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = undefined;
  }
}
