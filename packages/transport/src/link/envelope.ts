/** What two peers say to each other, as arrays: the first element is the kind. */

export const envelopeKind = {
  /** [request, id, method, body]; ids of one side count up from 1 */
  request: 0,
  /** [reply, id, result] */
  reply: 1,
  /** [failure, id, ErrorRecord] */
  failure: 2,
  /** [cancel, id]: the caller no longer waits */
  cancel: 3,
  /** [notify, method, body] */
  notify: 4,
} as const;
