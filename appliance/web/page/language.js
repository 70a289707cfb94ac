// The menu of languages, for a model of several.

const names = new Intl.DisplayNames(["en"], { type: "language" });

/** [value, text] of the choices that come before the languages. */
export const FIRST_LANGUAGES = [["", "As the model was added"], ["auto", "Detect automatically"]];

/** Offer the languages of the model in use. A model of one language has no menu. */
export function showLanguages(field, models, state) {
  const used = state?.encoder === "fleet" ? null : models.find(({ name }) => name === state?.model);
  const known = used?.languages ?? [];
  field.node.hidden = known.length < 2;
  const named = known.map((code) => [code, names.of(code)]);
  field.choose([...FIRST_LANGUAGES, ...named.sort(([, one], [, other]) => one.localeCompare(other))]);
}
