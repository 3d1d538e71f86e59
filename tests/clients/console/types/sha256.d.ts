// The types of `vendor/sha256.js`.

interface Hash {
  update(bytes: Uint8Array): Hash;
  digest(): Uint8Array;
}

export const sha256: { (bytes: Uint8Array): Uint8Array; create(): Hash };
