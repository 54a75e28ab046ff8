"use strict";
/* The last script of the playground. */
new Playground(document.querySelector("pl-page")).start();
