/** Lemmatisers: what a word form is a form of, as a class for each lemma. */
package io.djltp.zoo.lemma;
