// What search results quote: the text of the article without the page around it, each formula once.
if (typeof Search !== "undefined") {
  const textOf = Search.htmlToText;
  Search.htmlToText = (page, anchor) => {
    const article = new DOMParser().parseFromString(page, "text/html").querySelector("article");
    if (!article) return textOf(page, anchor);
    const unread = ".katex-html, .katex-mathml annotation, .sphx-glr-download-link-note";
    article.querySelectorAll(unread).forEach((part) => part.remove());
    return textOf(`<div role="main">${article.outerHTML}</div>`, anchor);
  };
}
