// In the place of linkedom's canvas, a native module: nothing is drawn on one.
exports.createCanvas = (width, height) => ({ width, height, getContext: () => null, toDataURL: () => "" });
