/**
 * Sessions and their branches: who continues whom, and where two of them part. Pure.
 *
 * @typedef {{session: string, state: string, created_at: string,
 *   branched_from?: {session: string, seq: number, head: string}}} Node
 * @typedef {{session: string, after: number, until: number | null}} Stretch
 */

/**
 * All sessions of a tree by their keys.
 * @param {any} tree The tree of the oldest session.
 * @param {any} model The model of that session.
 * @returns {Map<string, Node>}
 */
export function nodes(tree, model) {
  const found = new Map();
  for (const each of tree.ancestors) found.set(each.session, each);
  found.set(tree.session, { session: tree.session, state: model?.state ?? "", created_at: model?.created_at ?? "", branched_from: model?.branched_from });
  for (const each of tree.branches) found.set(each.session, each);
  return found;
}

/** The branches of a session, the oldest first. @param {Map<string, Node>} known @param {string} session */
export function branchesOf(known, session) {
  return [...known.values()].filter((each) => each.branched_from?.session === session && each.session !== session);
}

/** A session and those that it continues, up to the oldest. @param {Map<string, Node>} known @param {string} session */
export function lineOf(known, session) {
  const line = [session];
  for (let node = known.get(session); node?.branched_from; node = known.get(node.branched_from.session)) {
    if (line.includes(node.branched_from.session)) break; // a record that was tampered with
    line.push(node.branched_from.session);
  }
  return line;
}

/**
 * What each of two sessions has that the other has not: stretches of records, the oldest first; null if they have
 * nothing in common.
 * @param {Map<string, Node>} known
 * @param {string} one
 * @param {string} other
 * @returns {{common: string, sides: [Stretch[], Stretch[]]} | null}
 */
export function parted(known, one, other) {
  const lines = [lineOf(known, one), lineOf(known, other)];
  const common = lines[0].find((session) => lines[1].includes(session));
  if (common === undefined) return null;
  /** Where a line leaves the common session; null if it does not. @param {string[]} line */
  const left = (line) => {
    const place = line.indexOf(common);
    return place === 0 ? null : (known.get(line[place - 1])?.branched_from?.seq ?? 0);
  };
  const leaves = lines.map(left);
  const fork = Math.min(...leaves.map((seq) => seq ?? Infinity));
  const after = Number.isFinite(fork) ? fork : 0;
  const sides = lines.map((line, index) => {
    const own = line.slice(0, line.indexOf(common));
    const stretches = /** @type {Stretch[]} */ ([{ session: common, after, until: leaves[index] }]);
    for (const [place, session] of own.toReversed().entries()) {
      const next = own.toReversed()[place + 1];
      stretches.push({ session, after: 0, until: next ? (known.get(next)?.branched_from?.seq ?? null) : null });
    }
    return stretches.filter((each) => each.until === null || each.until > each.after);
  });
  return { common, sides: /** @type {[Stretch[], Stretch[]]} */ (sides) };
}
