// `vendor/codemirror.js` without types: `editor.js` says what it uses of it.

declare const codemirror: any;
export = codemirror;
