// Elements and lists. Text always becomes a text node: a transcript is never markup.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "line", "text", "circle"]);
const ICONS = {
  live: "M4 10v4M8 6v12M12 9v6M16 4v16M20 10v4",
  history: "M4 6h16M4 12h16M4 18h10",
  health: "M3 12h4l3-7 4 14 3-7h4",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
  pen: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  bin: "M4 7h16M10 4h4M6 7l1 13h10l1-13M10 11v5M14 11v5",
};

/** Return a new element. Functions whose name begins with "on" become listeners; null, undefined
 * and false leave an attribute or a child out; children may be nested in arrays. */
export function element(tag, attributes = {}, ...children) {
  const made = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else setAttribute(made, name, value);
  }
  made.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return made;
}

/** Set an attribute, or remove it if `value` is null, undefined or false; true makes it empty. */
export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value === true ? "" : value)) node.setAttribute(name, value === true ? "" : value);
}

/** Set the text of `node`. The same text leaves it alone, so that nobody hears it twice. */
export function setText(node, text) {
  if (node.textContent !== String(text)) node.textContent = text;
}

/** Make the children of `list` those of `items`, in their order. A child whose key is there already
 * stays as it is, so the keyboard's focus and a selection in it stay, too. */
export function fillList(list, items, keyOf, make) {
  const keys = items.map((item) => String(keyOf(item)));
  const focused = list.contains(document.activeElement) && document.activeElement.getAttribute("aria-label");
  const wanted = new Set(keys);
  const known = new Map();
  for (const child of [...list.children]) {
    if (wanted.has(child.dataset.key)) known.set(child.dataset.key, child);
    else child.remove();
  }
  let next = list.firstElementChild;
  items.forEach((item, index) => {
    const child = known.get(keys[index]) || make(item);
    child.dataset.key = keys[index];
    if (child === next) next = next.nextElementSibling;
    else list.insertBefore(child, next);
  });
  if (focused && !list.contains(document.activeElement)) {
    [...list.querySelectorAll("[aria-label]")].find((one) => one.getAttribute("aria-label") === focused)?.focus();
  }
}

/** Show a dialog; `onCancel` runs when Escape is pressed. Returns a function that closes it. */
export function openDialog(title, onCancel, ...content) {
  const dialog = element("dialog", { "aria-labelledby": "dialog", oncancel: onCancel },
    element("h2", { id: "dialog" }, title), ...content);
  document.querySelector("main").append(dialog);
  dialog.showModal();
  return () => {
    dialog.close();
    dialog.remove();
  };
}

/** Return a drawing of that name, for eyes alone. */
export const icon = (name) =>
  element("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, element("path", { d: ICONS[name] }));

/** Return a button that runs `press`, an async function, and ignores clicks until it is done. It is
 * not disabled meanwhile: a disabled button loses the keyboard's focus. */
export function button(text, press, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", async () => {
    if (made.hasAttribute("aria-disabled")) return;
    setAttribute(made, "aria-disabled", "true");
    try {
      await press();
    } finally {
      setAttribute(made, "aria-disabled", null);
    }
  });
  return made;
}
