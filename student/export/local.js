/* What the page asks: the student that it holds. */
const backend = {
  way: "",
  async runs() {
    this.student = await openStudent(document.getElementById("student").textContent);
    const {task, labels, isPair} = this.student, {name, textColumns} = JSON.parse(document.getElementById("facts").textContent);
    return [{name, task, labels, is_pair: isPair, text_columns: textColumns, has_teacher: false, max_client_batch_size: BATCH}];
  },
  async answer(run, path, inputs) {
    await new Promise((resolve) => setTimeout(resolve)); // lets the page show what there is
    return this.student.predict(inputs.map((texts) => run.is_pair ? texts : texts[0])).map(({score, probabilities}) => {
      if (!probabilities) return [{label: "score", score}];
      return Object.entries(probabilities).map(([label, p]) => ({label, score: p})).sort((a, b) => b.score - a.score);
    });
  },
};
