// The broker's settings, which the first steps and Settings ask for.

export const PUBLISHES = "mqtt.enabled";
export const BROKER = ["mqtt.host", "mqtt.port", "mqtt.username", "mqtt.password", "mqtt.tls"];

/** Return a setting's name in the daemon's command `broker`. */
const argument = (name) => name.slice("mqtt.".length);

/** Return the broker's settings by key, from the answer of `settings`; the password is never told. */
export const brokerValues = (broker) =>
  Object.fromEntries(BROKER.map((name) => [name, name === "mqtt.password" ? "" : broker[argument(name)]]));

/** Return what the fields (a Map by key) say, as arguments of `broker`. */
export function brokerLogin(fields) {
  const login = Object.fromEntries(BROKER.map((name) => [argument(name), fields.get(name).value]));
  if (!login.password) delete login.password; // the saved one, if there is one
  return login;
}
