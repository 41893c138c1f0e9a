/* A student in JavaScript, for pages and Node: `const student = await openStudent(content)`. */
const openStudent = (() => {
  const AT_ONCE = 64; // inputs, so that what is made of them stays in the processor's cache
  const BEYOND = "\uffff"; // a character that is in no piece
  const MOST_WORDS = 50_000; // whose pieces are remembered

  async function unpacked(content) {
    const text = atob(content), bytes = new Uint8Array(text.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  /* A safetensors file as its metadata and a function that gives the bytes of a tensor. */
  function parsed(bytes) {
    const start = 8 + Number(new DataView(bytes.buffer).getBigUint64(0, true));
    const {__metadata__: metadata, ...tensors} = JSON.parse(new TextDecoder().decode(bytes.subarray(8, start)));
    const tensor = (name) => bytes.subarray(...tensors[name].data_offsets.map((offset) => start + offset));
    return {metadata: JSON.parse(metadata.student), tensors, tensor};
  }

  /* Text to numbers of rows, as BERT's WordPiece; -1 for the padding, 0 for a token without a row. */
  class Words {
    constructor({pieces, others, added, characters, prefix, unknown, longest}) {
      this.rows = new Map([...others.map((piece) => [piece, 0]), ...pieces.map((piece, k) => [piece, k + 1]), ...added]);
      this.characters = characters;
      this.normal = new Map();
      this.prefix = prefix;
      this.unknown = [this.rows.get(unknown)];
      this.longest = longest;
      this.known = new Map();
      const names = added.map(([name]) => name.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).sort((a, b) => b.length - a.length);
      this.added = names.length ? new RegExp(`(${names.join("|")})`, "u") : /$^/;
    }

    /* What stands for a character, with spaces around a word of its own: of the last entry that begins at it or before. */
    normalOf(character) {
      const code = character.codePointAt(0);
      let low = 0, high = this.characters.length;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (this.characters[middle][0] <= code) low = middle;
        else high = middle;
      }
      const normal = this.characters[low][1] ?? character;
      this.normal.set(character, normal);
      return normal;
    }

    piecesOf(word) {
      if (word.length > this.longest && [...word].length > this.longest) return this.unknown;
      const rows = [];
      for (let start = 0, end; start < word.length; start = end) {
        const prefix = start ? this.prefix : "";
        for (end = word.length; end > start && !this.rows.has(prefix + word.slice(start, end)); end--);
        if (end === start) return this.unknown;
        rows.push(this.rows.get(prefix + word.slice(start, end)));
      }
      return rows;
    }

    remembered(word) {
      if (this.known.size >= MOST_WORDS) this.known.clear();
      const rows = this.piecesOf(word);
      this.known.set(word, rows);
      return rows;
    }

    read(text) {
      const rows = [];
      text.split(this.added).forEach((part, k) => {
        if (k % 2) return rows.push(this.rows.get(part));
        const normal = part.replace(/[^a-z0-9 ]/gu, (one) => this.normal.get(one) ?? this.normalOf(one));
        for (const word of normal.split(" ")) {
          if (word) for (const row of this.known.get(word) ?? this.remembered(word)) rows.push(row);
        }
      });
      return rows;
    }
  }

  /* Of a pair the longer sentence loses tokens first, then each by turns. */
  function cut(parts, room) {
    if (parts.length === 1) return [parts[0].slice(0, room)];
    const [a, b] = parts.map((part) => part.length);
    const short = Math.min(a, b, room >> 1), long = Math.min(Math.max(a, b), room - short);
    return a <= b ? [parts[0].slice(0, short), parts[1].slice(0, long)] : [parts[0].slice(0, long), parts[1].slice(0, short)];
  }

  class Student {
    constructor({metadata, tensors, tensor}, {memory, __heap_base, ...kernel}) {
      Object.assign(this, metadata.facts);
      this.shape = metadata.shape;
      this.words = new Words(metadata.words);
      this.kernel = kernel;
      this.memory = memory;
      this.free = __heap_base.value;
      this.at = {};
      for (const [name, {dtype}] of Object.entries(tensors)) {
        if (dtype === "F32") this.at[name] = this.put(tensor(name));
      }
      this.packed = Object.fromEntries(metadata.packed.map(({name, width, rows}) => {
        const at = {width, packed: this.put(tensor(name)), out: this.room(4 * rows * width), isReady: new Uint8Array(rows)};
        return [name, at];
      }));
      this.tables = ["vectors", "forward", "backward"].filter((name) => name in this.packed);
      this.bigrams = new Map();
      const of = "bigrams" in this.packed ? new Int32Array(tensor("bigrams.rows").slice().buffer) : [];
      for (let k = 0; 2 * k < of.length; k++) {
        const [first, second] = of.subarray(2 * k);
        if (first && second) this.bigrams.set(this.key(first, second), k);
      }
      for (const [name, {out}] of Object.entries(this.packed)) this.at[name] = out;
      if (this.shape.isMlp) this.unpack("0.weight", [...this.packed["0.weight"].isReady.keys()]);
      const {features, hidden, labels, longest} = this.shape;
      this.features = this.room(4 * AT_ONCE * features);
      this.hidden = this.room(4 * AT_ONCE * hidden);
      this.out = this.room(4 * AT_ONCE * labels);
      this.sequence = this.room(4 * longest);
    }

    /* So many bytes of the kernel's memory, from an address that fits its registers. */
    room(bytes) {
      const start = (this.free + 63) & ~63;
      this.free = start + bytes;
      const missing = this.free - this.memory.buffer.byteLength;
      if (missing > 0) this.memory.grow(Math.ceil(missing / 65536));
      return start;
    }

    put(bytes) {
      const start = this.room(bytes.length);
      new Uint8Array(this.memory.buffer).set(bytes, start);
      return start;
    }

    /* Makes floats of rows of a table, which takes until they are needed: most texts need few. */
    unpack(name, rows) {
      const {width, packed, out, isReady} = this.packed[name], {[`${name}.step`]: step, [`${name}.neutral`]: neutral} = this.at;
      for (const row of rows) {
        if (isReady[row]) continue;
        const [size] = new Float32Array(this.memory.buffer, step + 4 * row, 1);
        this.kernel.unpack(packed + row * ((width + 1) >> 1), size, neutral, width, out + 4 * row * width);
        isReady[row] = 1;
      }
    }

    /* The rows that are read of an input: of one sequence, or of two. */
    sequences(input) {
      const texts = this.isPair ? input : [input];
      if (texts.length !== 1 + this.isPair || !texts.every((text) => typeof text === "string")) {
        throw new TypeError(`this student of ${this.task} takes ${this.isPair ? "pairs of texts, [a, b]" : "texts"}`);
      }
      const broken = texts.find((text) => /\p{Surrogate}/u.test(text));  // Python's students refuse it, too
      if (broken !== undefined) throw new TypeError(`half a surrogate pair in ${JSON.stringify(broken.slice(0, 60))}`);
      const {room, special} = this.shape;
      const parts = cut(texts.map((text) => this.words.read(text)), room).map((part) => part.filter((row) => row >= 0));
      return special ? [[...special[0], ...parts[0], ...special[1], ...parts[1], ...special[2]]] : parts;
    }

    /* What the tables make of a sequence, written to an address. */
    encode(rows, to) {
      const {vectorSize, withMax, side} = this.shape, {vectors, forward, backward, bigrams} = this.at;
      for (const name of this.tables) this.unpack(name, rows);
      new Int32Array(this.memory.buffer, this.sequence, rows.length).set(rows);
      const sequence = [this.sequence, rows.length];
      if (vectors !== undefined) this.kernel.pool(vectors, vectorSize, ...sequence, to, withMax ? to + 4 * vectorSize : 0);
      let next = to + 4 * vectorSize * (1 + withMax);
      if (forward !== undefined) this.kernel.multiply_rows(forward, side, ...sequence, 1, next);
      next += 4 * side * side;
      if (backward !== undefined) this.kernel.multiply_rows(backward, side, ...sequence, -1, next);
      next += backward === undefined ? 0 : 4 * side * side;
      if (bigrams !== undefined) this.encodeBigrams(rows, next);
    }

    /* The sum of what is known of pairs of neighbours. */
    encodeBigrams(rows, to) {
      const keys = rows.slice(1).map((row, k) => this.key(rows[k], row)).filter((key) => this.bigrams.has(key));
      const known = keys.map((key) => this.bigrams.get(key));
      this.unpack("bigrams", known);
      new Int32Array(this.memory.buffer, this.sequence, known.length).set(known);
      this.kernel.pool(this.at.bigrams, this.packed.bigrams.width, this.sequence, known.length, to, 0);
    }

    /* A number for two rows; those of tokens without a row are 0, and in no pair that is known. */
    key(first, second) {
      return first * 2 ** 24 + second;
    }

    /* The logits of a few inputs. */
    answer(inputs) {
      const {size, features, hidden, labels, compare, isMlp} = this.shape, {kernel, at} = this, count = inputs.length;
      inputs.forEach((input, n) => {
        const to = this.features + 4 * features * n;
        this.sequences(input).forEach((rows, k) => this.encode(rows, to + 4 * size * k));
        if (compare) kernel.compare(to, size, Number(compare === "compare"));
      });
      if (isMlp) {
        kernel.linear(this.features, count, features, at["0.weight"], at["0.bias"], this.hidden, hidden);
        kernel.relu(this.hidden, count * hidden);
        kernel.layer_norm(this.hidden, count, hidden, at["2.weight"], at["2.bias"]);
        kernel.linear(this.hidden, count, hidden, at["3.weight"], at["3.bias"], this.out, labels);
      } else {
        kernel.layer_norm(this.features, count, features, at["0.weight"], at["0.bias"]);
        kernel.linear(this.features, count, features, at["1.weight"], at["1.bias"], this.out, labels);
      }
      return new Float32Array(this.memory.buffer, this.out, count * labels);
    }

    /* What the student says before softmax: Float32Array, a row of numbers for each input, end to end. */
    logits(inputs) {
      const {labels} = this.shape, result = new Float32Array(inputs.length * labels);
      for (let start = 0; start < inputs.length; start += AT_ONCE) {
        result.set(this.answer(inputs.slice(start, start + AT_ONCE)), start * labels);
      }
      return result;
    }

    /* For each input `{label, probabilities}`, or `{score}`. */
    predict(inputs) {
      const {labels} = this.shape, logits = this.logits(inputs);
      return inputs.map((_, n) => {
        const row = [...logits.subarray(n * labels, (n + 1) * labels)];
        if (labels === 1 && !this.labels.length) return {score: row[0]};
        const largest = Math.max(...row), parts = row.map((logit) => Math.exp((logit - largest) / this.temperature));
        const total = parts.reduce((a, b) => a + b), p = parts.map((part) => part / total);
        if (!this.labels.length) return {score: p.reduce((score, one, k) => score + one * this.bins[k], 0)};
        return {label: this.labels[row.indexOf(largest)], probabilities: Object.fromEntries(this.labels.map((name, k) => [name, p[k]]))};
      });
    }
  }

  return async (content) => {
    const file = parsed(await unpacked(content));
    const {instance} = await WebAssembly.instantiate(file.tensor("kernel"));
    return new Student(file, instance.exports);
  };
})();
