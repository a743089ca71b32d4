/** What the NATS threads need to know of keys; they load nothing of this repository's other packages. */

/** The seed in a file that holds one, alone or in credentials of NATS; undefined where there is none. */
export function seedIn(text: string): string | undefined {
  return text
    .split("\n")
    .map((line) => line.trim())
    .find((line) => /^SU[A-Z2-7]{56}$/.test(line));
}

/** What the subjects begin with on which the holder of a key gets answers, so that a server can keep them from others. */
export const inboxOf = (publicKey: string): string => `_INBOX.${publicKey}`;

/** Where members answer one another: the only part of others' inboxes that keys may write to. Servers answer elsewhere. */
export const answersOf = (inbox: string): string => `${inbox}.answer`;

/** Whether members get answers there, of any key or none. */
export const isAnswer = (subject: string): boolean => /^_INBOX\.(U[A-Z2-7]{55}\.)?answer\.[0-9a-f-]{36}$/.test(subject);
