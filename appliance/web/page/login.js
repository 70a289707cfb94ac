// The login: a password, or a link that the appliance prints.

import { call } from "./api.js";
import { element } from "./dom.js";
import { notice } from "./text.js";

/** Return the login form. `hasPassword`: one is set; `problem` is why the last attempt failed;
 * `enter` shows the page once the session is there. */
export function loginForm({ hasPassword, problem }, enter) {
  const why = notice({ id: "why" });
  why.show(problem);
  const field = element("input", {
    id: "password", type: "password", autocomplete: "current-password", required: true, autofocus: true, "aria-describedby": "why",
  });
  const send = element("button", { class: "main" }, "Log in");
  const submit = async (event) => {
    event.preventDefault();
    send.disabled = true;
    const isIn = await why.attempt(() => call("api/login", { password: field.value }).then(enter));
    if (!isIn) {
      field.setAttribute("aria-invalid", "true");
      field.select();
    }
    send.disabled = false;
  };
  return element("main", { class: "login" },
    element("form", { class: "card", onsubmit: submit },
      element("div", { class: "row" }, element("img", { src: "icon.svg", alt: "" }), element("h1", {}, "Roomscribe")),
      hasPassword && [
        // for the browser's store of passwords, which wants a name beside each
        element("input", { class: "hidden", type: "text", name: "username", value: "roomscribe", autocomplete: "username", tabindex: -1, "aria-hidden": "true", readonly: true }),
        element("div", { class: "field" }, element("label", { for: "password" }, "Password"), field),
      ],
      why,
      hasPassword && send,
      element("p", { class: "soft" }, hasPassword ? "Or run " : "To log in, run ", element("code", {}, "sudo roomscribe web open"),
        " on the appliance and open the link that it prints.")));
}
