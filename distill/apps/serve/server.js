/* What the page asks: the server that it came from. */
const backend = {
  way: ", the way here and back included",
  async runs() {
    return (await fetch("runs")).json();
  },
  async answer(run, path, inputs) {
    const answer = await fetch(`runs/${encodeURIComponent(run.name)}${path}`, {
      method: "POST", headers: {"content-type": "application/json"}, body: JSON.stringify({inputs}),
    });
    const content = await answer.json();
    if (!answer.ok) throw new Error(content.error);
    return content;
  },
};
