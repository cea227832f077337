// How the search ranks what it finds: pages to read before the references, and these by their names.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    const reference = kind === "object" || /^(api|recipe_|commands)/.test(docname);
    return reference ? score - 1000 : score;
  },
};
