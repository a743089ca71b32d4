/** Topics are words joined by dots; in a pattern `*` stands for any one word. */
export function topicMatches(pattern: string, topic: string): boolean {
  const wanted = pattern.split(".");
  const words = topic.split(".");
  return wanted.length === words.length && wanted.every((word, i) => word === "*" || word === words[i]);
}
