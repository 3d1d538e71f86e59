/** Answers that are asked for again and again, as long as somebody looks. */

import { api } from "../app/api.js";
import { useEffect, useState } from "../vendor/preact.js";

const EVERY = 10_000;

/** The latest answer; null until there is one, and where it is refused. @param {string} path */
export function useAnswer(path) {
  const [answer, setAnswer] = useState(/** @type {any} */ (null));
  useEffect(() => {
    const ask = () => {
      if (!document.hidden) api.get(path).then(setAnswer, () => undefined);
    };
    ask();
    const timer = setInterval(ask, EVERY);
    return () => clearInterval(timer);
  }, [path]);
  return answer;
}
