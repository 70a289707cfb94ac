// Play the last sentence again, while the appliance still has its sound.

import { command } from "./api.js";

const KEPT_MS = 60e3;

/** Return true while the sound of a sentence may still be there. */
export const isRecent = (one) => Date.now() - new Date(one.end) < KEPT_MS;

/** Play a sentence; return when it has ended. Raises Refusal. */
export async function playSentence(id) {
  const samples = [];
  let total = 1, rate = 0;
  while (samples.length < total) {
    const part = await command("playback", { transcript_id: id, offset: samples.length });
    const bytes = Uint8Array.from(atob(part.data), (letter) => letter.charCodeAt(0));
    if (!bytes.length) break;
    samples.push(...new Int16Array(bytes.buffer));
    total = part.samples;
    rate = part.rate_hz;
  }
  const context = new AudioContext(), sound = context.createBuffer(1, samples.length, rate);
  sound.copyToChannel(Float32Array.from(samples, (one) => one / 32768), 0);
  const source = context.createBufferSource();
  source.buffer = sound;
  source.connect(context.destination);
  source.start();
  await new Promise((ended) => setTimeout(ended, 1000 * sound.duration));
  context.close();
}
