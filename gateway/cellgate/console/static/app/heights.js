/**
 * The heights of many items, one below the other: where an item begins, and which one is at a place. Pure.
 *
 * A Fenwick tree: a list of 10,000 cells asks many times per second, and each of its answers takes fourteen steps.
 */

export class Heights {
  /** @param {number} estimate The height of an item that was not measured. */
  constructor(estimate) {
    this.estimate = estimate;
    this.count = 0;
    this.heights = new Float64Array(64);
    this.sums = new Float64Array(65);
  }

  /** @param {number} count */
  grow(count) {
    if (count > this.heights.length) {
      const heights = new Float64Array(2 ** Math.ceil(Math.log2(count)));
      heights.set(this.heights);
      this.heights = heights;
    }
    this.heights.fill(this.estimate, this.count, Math.max(count, this.count));
    this.count = count;
    this.#rebuild();
  }

  #rebuild() {
    this.sums = new Float64Array(this.heights.length + 1);
    for (let place = 1; place <= this.heights.length; place += 1) {
      this.sums[place] += place <= this.count ? this.heights[place - 1] : 0;
      const above = place + (place & -place);
      if (above <= this.heights.length) this.sums[above] += this.sums[place];
    }
  }

  /**
   * The difference that it makes.
   * @param {number} index
   * @param {number} height
   */
  set(index, height) {
    if (index >= this.count) return 0;
    const difference = height - this.heights[index];
    if (difference === 0) return 0;
    this.heights[index] = height;
    for (let place = index + 1; place < this.sums.length; place += place & -place) this.sums[place] += difference;
    return difference;
  }

  /** Where an item begins; that of the count is where the last one ends. @param {number} index */
  offset(index) {
    let sum = 0;
    for (let place = Math.min(index, this.count); place > 0; place -= place & -place) sum += this.sums[place];
    return sum;
  }

  get total() {
    return this.offset(this.count);
  }

  /** The item at a place; the first or the last one for what is beyond. @param {number} place */
  at(place) {
    let index = 0;
    let left = place;
    for (let step = 2 ** Math.floor(Math.log2(this.sums.length)); step >= 1; step /= 2) {
      const next = index + step;
      if (next < this.sums.length && next <= this.count && this.sums[next] <= left) {
        index = next;
        left -= this.sums[next];
      }
    }
    return Math.max(0, Math.min(index, this.count - 1));
  }
}
