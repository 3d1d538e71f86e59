/**
 * Who reads the page, what they may do, and what the gateway is: asked once after the sign-in.
 */

import { api } from "./api.js";
import { computed, signal } from "../vendor/preact.js";

/** `GET /v1/me`. */
export const me = signal(/** @type {any} */ (null));

/** `GET /v1/info`. */
export const info = signal(/** @type {any} */ (null));

/** Administrators and auditors see others' sessions. */
export const seesOthers = computed(() => ["admin", "auditor"].includes(me.value?.role));
export const isAdmin = computed(() => me.value?.role === "admin");

/** @param {string} permission */
export const may = (permission) => me.value?.scopes?.includes(permission) === true;

export async function meet() {
  [me.value, info.value] = await Promise.all([api.get("v1/me"), api.get("v1/info")]);
}

/** The language of a kernelspec. @param {string | undefined} kernel @returns {string} */
export const languageOf = (kernel) => info.value?.kernelspecs?.[kernel ?? ""]?.language ?? "python";
