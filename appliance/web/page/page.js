// The start of the page: the login, or the frame with its views.

import { call, session } from "./api.js";
import { Frame } from "./frame.js";
import { loginForm } from "./login.js";

const page = document.getElementById("page");
let inside = false;

async function enter() {
  Object.assign(session, await call("api/session"));
  inside = true;
  if (session.first_steps && !location.hash) history.replaceState(null, "", "#first-steps");
  page.replaceChildren(...new Frame().nodes);
}

/** Try the link of the address, if there is one, then the session; else show the login. */
async function start() {
  const link = location.hash.startsWith("#link=") ? location.hash.slice("#link=".length) : "";
  let problem = "";
  if (link) {
    history.replaceState(null, "", location.pathname); // it works once, and must not stay in a history
    await call("api/login", { link }).catch((error) => (problem = error.message));
  }
  if (inside) return;
  try {
    await enter();
  } catch (error) {
    const why = problem || (error.status === 401 ? "" : error.message);
    page.replaceChildren(loginForm({ hasPassword: error.answer?.password, problem: why }, enter));
    page.querySelector("[autofocus]")?.focus();
  }
}

session.over = () => location.reload();
// a link pasted into this tab changes only the part behind the #, and loads nothing
addEventListener("hashchange", () => location.hash.startsWith("#link=") && start());
start();
