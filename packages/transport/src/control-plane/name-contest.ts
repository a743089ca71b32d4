/**
 * Which of several processes stays that announce themselves under one name at the same time, when none has heard another yet.
 * Pure.
 *
 * NC1 all order them alike, by incarnation and then by identity, and each gives way to one above it: so the highest stays, and
 *    it alone, once they have heard one another, in whatever order and however late.
 * NC2 nobody rises above an incarnation whose member is there, which would rise in turn; one above which nobody is there, such as
 *    that of a process that has ended and whose clock was ahead, is risen above.
 */

export type Claim = {
  readonly incarnation: number;
  /** what no two processes share */
  readonly identity: string;
};

export function isAbove(one: Claim, other: Claim): boolean {
  if (one.incarnation !== other.incarnation) return one.incarnation > other.incarnation;
  return one.identity > other.identity;
}

export type Contest = {
  readonly own: Claim;
  /** the highest incarnation that anybody remembers of the name */
  readonly newest: number;
  /** a member of a higher incarnation has proven that it is there */
  readonly isRivalThere: boolean;
  /** a claim above this one was heard */
  readonly isBeaten: boolean;
};

export function settleName({
  own,
  newest,
  isRivalThere,
  isBeaten,
}: Contest): { readonly type: "hold" | "give way" } | { readonly type: "rise"; readonly above: number } {
  if (isRivalThere) return { type: "give way" };
  if (newest > own.incarnation) return { type: "rise", above: newest };
  return isBeaten ? { type: "give way" } : { type: "hold" };
}
