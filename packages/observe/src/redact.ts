/**
 * Replaces what looks like a secret in a line of text, plain or JSON. It goes by well-known shapes (a key named like a
 * secret with a string value, credentials in an address, bearer tokens, keys with a known prefix), so it is a net
 * under careless logging and no licence for it. Numbers are left alone: `"tokens":512` is a count. Repetitions
 * are bounded, so that no line takes more than linear time.
 */
export function redactSecrets(line: string): string {
  return line
    .replace(secretField, `$1${removed}"`)
    .replace(quotedSecretField, `$1${removed}\\"`)
    .replace(secretAssignment, `$1$2${removed}`)
    .replace(addressCredentials, `$1${removed}@`)
    .replace(bearer, `$1 ${removed}`)
    .replace(knownPrefix, removed);
}

const removed = "[redacted]";
const secretName =
  "[\\w-]{0,40}(?:api[_-]?key|secret|passw(?:or)?d|passphrase|credentials?|authorization|private[_-]?key|(?:access|auth|bearer|refresh|session|id|api|hf)[_-]?token)";
/** `"apiKey": "…"` in JSON */
const secretField = new RegExp(`("${secretName}"\\s*:\\s*")(?:[^"\\\\]|\\\\.)*"`, "gi");
/** the same in JSON that stands inside a string */
const quotedSecretField = new RegExp(`(\\\\"${secretName}\\\\"\\s*:\\s*\\\\")(?:[^"\\\\]|\\\\\\\\.)*\\\\"`, "gi");
/** `API_KEY=…` and `--password …` */
const secretAssignment = new RegExp(`\\b(${secretName})(\\s*=\\s*)(?!\\s)[^\\s"',;}&]+`, "gi");
/** `nats://user:password@host` */
const addressCredentials = /(\b[a-z][a-z0-9+.-]{0,20}:\/\/)[^\s/@"':]{0,200}:[^\s/@"']{1,200}@/gi;
const bearer = /\b(bearer)\s+[\w.~+/=-]{8,}/gi;
const knownPrefix = /\b(?:sk|pk|rk)-[\w-]{16,}|\b(?:hf|ghp|gho|ghs|glpat|xox[abp])[_-][\w-]{16,}|\bAKIA[0-9A-Z]{16}\b/g;
